"""The variables of a command that is started once per host. PET_* are the defaults of torchrun's flags."""

HOST_VARIABLES = {
    "NNODES": "{nnodes}",
    "NODE_RANK": "{node_rank}",
    "NPROC_PER_NODE": "{nproc_per_node}",
    "WORLD_SIZE": "{world_size}",
    "MASTER_ADDR": "{master_addr}",
    "MASTER_PORT": "{master_port}",
    "PET_NNODES": "{nnodes}",
    "PET_NODE_RANK": "{node_rank}",
    "PET_NPROC_PER_NODE": "{nproc_per_node}",
    "PET_MASTER_ADDR": "{master_addr}",
    "PET_MASTER_PORT": "{master_port}",
}
