"""YAML -> Inventory."""
