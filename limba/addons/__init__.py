"""The add-ons, a folder each, and their table, which the core may import. Nothing imports an add-on but itself."""
