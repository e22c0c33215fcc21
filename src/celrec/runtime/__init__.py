"""What knows about the machine: machine code, threads, memory, files and processes."""
