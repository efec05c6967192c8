"""Analysis: Importance Factor maps, layer contributions, and every picture that daamctl draws."""
