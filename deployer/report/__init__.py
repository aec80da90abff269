"""What people see: terminal, tables, pages. Everything here is a function of records; nothing asks a host."""
