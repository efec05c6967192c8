"""What work runs on: devices, number formats, threads, energy, and the engines that spread work over them."""
