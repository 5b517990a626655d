"""Personal data: where it is (personal_data.toml, inventory), and how an address is found, exported and erased."""
