"""What puts offloading into an agent framework: one module per framework, loaded when it is named.

Each needs its framework, which is an extra of the same name, and says so where it is missing.
"""
