"""How work is computed: devices, number formats, attention, threads, energy, and engines that spread it over them."""
