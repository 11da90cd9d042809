"""A byte pipe to a host. The only importer of fabric and paramiko."""
