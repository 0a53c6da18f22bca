"""What Gemini answers."""

from scripted_rules import after, call, fails, on, otherwise, says

SCRIPT = {
    "trip_gemini": [
        on("fly", call("transfer_to_agent", agent_name="trip_flights")),
        on("sleep", call("transfer_to_agent", agent_name="trip_hotels")),
        on("bad", fails("no such model", status=404)),
        otherwise(says("Fly or sleep?")),
    ],
    "trip_flights": [
        on("sleep", call("transfer_to_agent", agent_name="trip_hotels")),
        after("lookup", says("90 euros.")),
        otherwise(call("lookup", name="Oslo")),
    ],
    "trip_hotels": [
        after("lookup", says("70 euros a night.")),
        on("bad", fails("bad request", status=400)),
        otherwise(call("lookup", name="Grand")),
    ],
}
