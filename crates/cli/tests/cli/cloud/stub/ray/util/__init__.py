"""The address of the machine."""


def get_node_ip_address():
    return "10.0.0.7"
