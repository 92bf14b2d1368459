"""Our own programs under measurement: the whole product, and its queue alone."""
