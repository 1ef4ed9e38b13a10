"""A cluster on one machine: nodes with their own address, disk, sshd and Docker Engine. See README.md."""
