"""What helps with each container engine: the command lines for advice. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from .findings import shell_word

_TOOLKIT = "install NVIDIA's Container Toolkit, then: "
_GROUP = "; if the daemon denies you: sudo usermod -aG docker $USER (this group is as powerful as root)"
_NAMESPACES = "; if user namespaces are denied: sudo sysctl -w kernel.unprivileged_userns_clone=1 (Debian) or "
_NAMESPACES += "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)"
_IDS = "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER; podman system migrate"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Command lines, with IMAGE and HOST (where the image goes) to be replaced by words for a shell."""

    attempt: str
    """Starts a container."""
    pull: str
    copy: str
    """Run on a host that has the image."""
    look: str
    """Prints what identifies the image."""
    toolkit: str
    """Sets up GPUs."""
    toolkit_name: str = "NVIDIA's Container Toolkit"
    toolkit_look: str
    """Prints whether GPUs are set up."""
    denied: str = ""
    """What helps where `attempt` is denied."""
    ids: str = ""
    """Adds subordinate user ids."""


def _of_apptainer(name: str) -> Advice:
    return Advice(
        attempt=f"{name} exec IMAGE true",
        pull=f"{name} pull IMAGE docker://NAME",
        copy="scp IMAGE HOST:IMAGE",
        look="sha256sum IMAGE",
        toolkit="install NVIDIA's driver with its libraries",
        toolkit_name="NVIDIA's driver",
        toolkit_look=f"{name} exec --nv IMAGE nvidia-smi",
        denied=_NAMESPACES,
    )


ADVICE = {
    "podman": Advice(
        attempt="podman run --rm --pull=never IMAGE true",
        pull="podman pull IMAGE",
        copy="podman save IMAGE | ssh HOST podman load",
        look="podman image inspect IMAGE",
        toolkit=_TOOLKIT + "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        toolkit_look="grep -rl nvidia.com/gpu /etc/cdi /var/run/cdi",
        ids=_IDS,
    ),
    "docker": Advice(
        attempt="docker run --rm --pull=never IMAGE true",
        pull="docker pull IMAGE",
        copy="docker save IMAGE | ssh HOST docker load",
        look="docker image inspect IMAGE",
        toolkit=_TOOLKIT + "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        toolkit_look="docker info | grep -iE 'runtimes|cdi'",
        denied=_GROUP,
    ),
    "enroot": Advice(
        attempt="enroot start IMAGE true",
        pull="enroot import -o IMAGE.sqsh docker://NAME && enroot create -n IMAGE IMAGE.sqsh",
        copy="enroot export -o IMAGE.sqsh IMAGE && scp IMAGE.sqsh HOST: && ssh HOST enroot create -n IMAGE IMAGE.sqsh",
        look="enroot list",
        toolkit="install NVIDIA's libnvidia-container-tools",
        toolkit_look="nvidia-container-cli info",
        denied=_NAMESPACES,
    ),
    "apptainer": _of_apptainer("apptainer"),
    "singularity": _of_apptainer("singularity"),
}


def advice_for(engine: str, image: str) -> Advice:
    """The advice about an image of an engine."""
    if engine != "enroot" or not image.startswith("/"):
        return ADVICE[engine]
    file = "enroot import -o IMAGE docker://NAME"
    return replace(ADVICE[engine], pull=file, copy="scp IMAGE HOST:IMAGE", look="sha256sum IMAGE")


def command(template: str, image: str, host: str = "") -> str:
    """One of the command lines, for an image and the host that it goes to."""
    return re.sub("IMAGE|HOST", lambda word: shell_word({"IMAGE": image, "HOST": host}[word[0]]), template)
