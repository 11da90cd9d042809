"""Inventory -> Plan, and the code that is sent."""
