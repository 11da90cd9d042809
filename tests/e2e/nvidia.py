"""nvidia-smi's answer for hosts without a GPU: its format, with values of our choice."""

from __future__ import annotations

GPU = """\
\t<gpu id="00000000:{bus:02X}:00.0">
\t\t<product_name>{name}</product_name>
\t\t<product_architecture>Hopper</product_architecture>
\t\t<persistence_mode>{persistence}</persistence_mode>
\t\t<mig_mode>
\t\t\t<current_mig>{mig}</current_mig>
\t\t\t<pending_mig>{mig}</pending_mig>
\t\t</mig_mode>
\t\t<uuid>GPU-00000000-0000-0000-0000-0000000000{bus:02x}</uuid>
\t\t<gpu_reset_status>
\t\t\t<reset_required>No</reset_required>
\t\t</gpu_reset_status>
\t\t<pci>
\t\t\t<pci_gpu_link_info>
\t\t\t\t<link_widths>
\t\t\t\t\t<max_link_width>16x</max_link_width>
\t\t\t\t\t<current_link_width>{lanes}x</current_link_width>
\t\t\t\t</link_widths>
\t\t\t</pci_gpu_link_info>
\t\t</pci>
\t\t<gpu_power_readings>
\t\t\t<instant_power_draw>70.21 W</instant_power_draw>
\t\t\t<current_power_limit>{power_limit}.00 W</current_power_limit>
\t\t\t<default_power_limit>700.00 W</default_power_limit>
\t\t</gpu_power_readings>
\t\t<clocks>
\t\t\t<graphics_clock>345 MHz</graphics_clock>
\t\t\t<sm_clock>345 MHz</sm_clock>
\t\t</clocks>
\t\t<applications_clocks>
\t\t\t<graphics_clock>{application_clock} MHz</graphics_clock>
\t\t</applications_clocks>
\t\t<default_applications_clocks>
\t\t\t<graphics_clock>1980 MHz</graphics_clock>
\t\t</default_applications_clocks>
\t\t<max_clocks>
\t\t\t<sm_clock>1980 MHz</sm_clock>
\t\t</max_clocks>
\t\t<clocks_event_reasons>
\t\t\t<clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
\t\t\t<clocks_event_reason_hw_slowdown>{hw_slowdown}</clocks_event_reason_hw_slowdown>
\t\t\t<clocks_event_reason_hw_thermal_slowdown>Not Active</clocks_event_reason_hw_thermal_slowdown>
\t\t</clocks_event_reasons>
\t\t<fb_memory_usage>
\t\t\t<total>81559 MiB</total>
\t\t\t<reserved>551 MiB</reserved>
\t\t\t<used>{used} MiB</used>
\t\t\t<free>80000 MiB</free>
\t\t</fb_memory_usage>
\t\t<compute_mode>{compute_mode}</compute_mode>
\t\t<utilization>
\t\t\t<gpu_util>{busy} %</gpu_util>
\t\t</utilization>
\t\t<temperature>
\t\t\t<gpu_temp>{celsius} C</gpu_temp>
\t\t</temperature>
\t\t<ecc_errors>
\t\t\t<volatile>
\t\t\t\t<sram_correctable>0</sram_correctable>
\t\t\t\t<sram_uncorrectable_parity>0</sram_uncorrectable_parity>
\t\t\t\t<dram_correctable>2</dram_correctable>
\t\t\t\t<dram_uncorrectable>{ecc}</dram_uncorrectable>
\t\t\t</volatile>
\t\t\t<aggregate>
\t\t\t\t<dram_uncorrectable>7</dram_uncorrectable>
\t\t\t</aggregate>
\t\t</ecc_errors>
\t\t<retired_pages>
\t\t\t<pending_retirement>N/A</pending_retirement>
\t\t</retired_pages>
\t\t<remapped_rows>
\t\t\t<remapped_row_pending>{remap_pending}</remapped_row_pending>
\t\t\t<remapped_row_failure>No</remapped_row_failure>
\t\t</remapped_rows>
\t\t<fabric>
\t\t\t<state>{fabric}</state>
\t\t\t<status>{fabric_status}</status>
\t\t</fabric>
\t\t<processes>{processes}
\t\t</processes>
\t</gpu>
"""

PROCESS = """
\t\t\t<process_info>
\t\t\t\t<gpu_instance_id>N/A</gpu_instance_id>
\t\t\t\t<compute_instance_id>N/A</compute_instance_id>
\t\t\t\t<pid>{pid}</pid>
\t\t\t\t<type>C</type>
\t\t\t\t<process_name>python</process_name>
\t\t\t\t<used_memory>{used} MiB</used_memory>
\t\t\t</process_info>"""

HEALTHY: dict[str, object] = {
    "name": "NVIDIA H100 80GB HBM3",
    "persistence": "Enabled",
    "mig": "Disabled",
    "hw_slowdown": "Not Active",
    "lanes": 16,
    "power_limit": 700,
    "application_clock": 1980,
    "used": 4,
    "busy": 0,
    "celsius": 31,
    "compute_mode": "Default",
    "ecc": 0,
    "remap_pending": "No",
    "fabric": "Completed",
    "fabric_status": "Success",
    "processes": "",
}


def answer(*gpus: dict[str, object], driver: str = "550.54.15", cuda: str = "12.4") -> str:
    """What `nvidia-smi -q -x` prints; each GPU is healthy but for what is given."""
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        "\t<timestamp>Sat Nov 21 23:00:00 2026</timestamp>\n"
        f"\t<driver_version>{driver}</driver_version>\n\t<cuda_version>{cuda}</cuda_version>\n"
        f"\t<attached_gpus>{len(gpus)}</attached_gpus>\n"
        + "".join(GPU.format(**{**HEALTHY, **gpu}, bus=number + 1) for number, gpu in enumerate(gpus))
        + "</nvidia_smi_log>\n"
    )


def links(*active: int) -> str:
    """What `nvidia-smi nvlink -s` prints; each GPU has 18 links, and so many of them are active."""
    return "".join(
        f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-0000000000{number + 1:02x})\n"
        + "".join(f"\t Link {link}: {'26.562 GB/s' if link < count else '<inactive>'}\n" for link in range(18))
        for number, count in enumerate(active)
    )


def topology(path: str) -> str:
    """What `nvidia-smi topo -m` prints of two GPUs and a network card, with what joins the GPUs."""
    return (
        "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
        f"GPU0\t X \t{path}\tPXB\t0-51\t0\t\tN/A\nGPU1\t{path}\t X \tSYS\t52-103\t1\t\tN/A\n"
        "NIC0\tPXB\tSYS\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n  PXB  = multiple PCIe bridges\n\n"
        "NIC Legend:\n\n  NIC0: mlx5_0\n"
    )
