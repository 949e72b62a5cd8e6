"""A gateway between a client and the API of a model: it replaces old large tool results in the requests.

Everything else passes byte for byte. `offload gateway` runs it.
"""

from offload.errors import needs_extra

with needs_extra("gateway"):
    from offload.gateway._app import gateway_app, serve, serving
    from offload.gateway._shadow_plan import ShadowPlan

__all__ = ["ShadowPlan", "gateway_app", "serve", "serving"]
