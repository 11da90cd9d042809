"""The form in which a webhook takes a message, by the host in its address. Pure.

Slack, Mattermost, Rocket.Chat, and connectors of Teams: {"text": ...}, which is also sent to any other address.
Discord: docs.discord.com/developers/resources/webhook. Workflows of Teams: an Adaptive Card in a message.
ntfy: docs.ntfy.sh/publish: the message is the body.
"""

import json
from typing import Dict, Tuple
from urllib.parse import urlsplit

JSON = {"Content-Type": "application/json"}
DISCORD_MOST = 2000  # characters of a message


def encode(webhook: str, text: str) -> Tuple[bytes, Dict[str, str]]:
    """The body of the POST, and its headers."""
    address = urlsplit(webhook)
    host = (address.hostname or "").lower()
    if _is_below(host, "discord.com", "discordapp.com") and not address.path.rstrip("/").endswith("/slack"):
        # no mentions: a message must not ring everybody, whatever a host or run is named
        return _json({"content": text[:DISCORD_MOST], "allowed_mentions": {"parse": []}})
    if _is_below(host, "logic.azure.com", "powerplatform.com"):
        card = {"type": "AdaptiveCard", "version": "1.4", "body": [{"type": "TextBlock", "text": text, "wrap": True}]}
        attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "content": card}
        return _json({"type": "message", "attachments": [attachment]})
    if host == "ntfy.sh" or host.startswith("ntfy."):
        return text.encode("utf-8", "backslashreplace"), {"Content-Type": "text/plain; charset=utf-8"}
    return _json({"text": text})


def _is_below(host: str, *domains: str) -> bool:
    return any(host == domain or host.endswith("." + domain) for domain in domains)


def _json(body: object) -> Tuple[bytes, Dict[str, str]]:
    return json.dumps(body).encode("ascii"), JSON
