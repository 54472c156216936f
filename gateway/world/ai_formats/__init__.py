"""The three formats in which the simulated models are asked and answer."""

from gateway.world.ai_formats.anthropic import Anthropic
from gateway.world.ai_formats.format import Format, Refused, Served
from gateway.world.ai_formats.gemini import Gemini
from gateway.world.ai_formats.openai import OpenAi

__all__ = ["Anthropic", "Format", "Gemini", "OpenAi", "Refused", "Served"]
