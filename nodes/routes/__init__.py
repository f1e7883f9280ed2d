"""What the pack's page asks the server: see, search, keep, forget and move remembered renders.

Every route is under /carnator/ on the host's own server, behind the host's own check of where a request comes from. A
request names banks and entries by their patterns and never a path; what changes anything is a POST of a type that a plain
form cannot send; answers and uploads are bounded; work on files is done on threads.
"""

from __future__ import annotations

import logging

log = logging.getLogger("carnator")


def attach() -> bool:
    """Put the routes on the running server; False where there is none, or none that takes them. Never raises."""
    try:
        from server import PromptServer

        from .handlers import BankRoutes

        routes = PromptServer.instance.routes
        for method, path, handler in BankRoutes().routes():
            routes.route(method, path)(handler)  # without options: the host cannot copy those to its /api
    except (ImportError, AttributeError, TypeError) as error:
        log.warning("Carnator: no bank browser on this host (%s: %s); the nodes work as ever.", type(error).__name__, error)
        return False
    return True
