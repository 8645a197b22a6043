"""Services of the operating system: syncs and locks of files, forks, descriptors, memory."""
