"""From the records of a bench to what people read: tables, plots, one HTML page."""
