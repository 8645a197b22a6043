"""What the operating system gives and asks: syncs and locks of files, forks, descriptors, memory."""
