"""Inventories: a file becomes hosts with variables and source positions here; core/bed turns hosts into nodes."""
