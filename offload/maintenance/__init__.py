"""Maintenance of stores: retention, copies, jobs over all sessions, the catalog's export, and the doctor."""
