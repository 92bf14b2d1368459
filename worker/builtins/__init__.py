"""The skills that ship with skillfleet: one file each, found by walking this package."""
