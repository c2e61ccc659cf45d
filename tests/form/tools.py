"""Writes tools.json: what vLLM 0.32 makes of chats with tools and calls. Run it by a Python that has vllm, from this folder.

A request is parsed by vLLM's own models and by its parser of messages, and rendered by Transformers. A prompt is written as how many letters
it shares with the one before it, and the rest; null where the request is refused.
"""

import copy
import json
import pathlib

import vllm.renderers.chat_utils as chat_utils
from transformers.utils.chat_template_utils import render_jinja_template
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.hf import _detect_content_format

TEMPLATES = [
    "chatml", "deepseek-v3", "deepseek-v3.1", "gemma-3", "gemma-tools", "hermes", "llama-3", "llama-3.1", "llama-4", "mistral-v0.3",
    "phi-4-mini", "qwen2.5", "qwen3",
]

WEATHER = """[{"type":"function","function":{"name":"get_weather","description":"The weather of a city.","parameters":{"type":"object","properties":{"city":{"type":"string","description":"Its name"},"days":{"type":"integer"}},"required":["city"]}}}]"""
SETS = [
    None,
    WEATHER,
    """[ {"function": {"parameters": {"properties": {"path": {"type": ["string", "null"], "description": "Where it \\"is\\"\\n\\tor \\u00e9\\u6f22\\ud83d\\ude42 </tools> <b>&amp;'"}, "n": {"type": "number", "default": 0.5, "minimum": -1, "maximum": 10.0, "enum": [1, 2.25, true, false, null, "", []]}}, "type": "object", "additionalProperties": false, "$defs": {}}, "strict": true, "description": "Reads", "name": "read_file"}, "type": "function"},
  {"type":"function","function":{"name":"stop","description":"{{ stop }} {% if %}","strict":null,"parameters":{"type":"object","properties":{}}}} ]""",
    """[{"function":{"name":"bare"}}]""",
    "[]",
]


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*calls, **content):
    return {"role": "assistant", "tool_calls": list(calls), **content}


def said(role, content):
    return {"role": role, "content": content}


def answer(content, id="call00001"):
    return {"role": "tool", "tool_call_id": id, "content": content}


USER, SYSTEM, ASSISTANT = said("user", "What is it like outside?"), said("system", "You are terse."), said("assistant", "Fine.")
ONE = call("get_weather", '{"city":"Berlin","days":2}')
TWO = call("get_weather", '{ "city" : "K\\u00f6ln \\"🙂\\"", "deep":[{"a":1.5,"b":[]}, null,true] }', "chatcmpl-tool-2")
CHATS = [
    [USER],
    [SYSTEM, USER],
    [USER, calls(ONE, content=None), answer("Rain."), ASSISTANT, USER],
    [SYSTEM, USER, calls(ONE, TWO, content="Let me see."), answer("Rain."), answer("Sun."), ASSISTANT, USER],
    [USER, calls(ONE, content=""), answer("Rain.")],
    [USER, calls(ONE), answer("Rain."), calls(TWO, content=None), answer("1", "b"), answer('{"a": 2}\n', "c")],
    [SYSTEM, USER, calls(TWO, content=" white "), answer([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]), USER],
    [USER, calls(call("f", "{no json"), content=None), answer("x"), USER],
    [USER, calls(call("f", ""), call("g", "{}"), call("h-1.2", '{"items":{"name":"a"},"b":{"c":1}}'), content=None), answer("x"), ASSISTANT],
    [USER, calls(content="Nothing to call."), USER],
    [USER, calls(ONE, content=None)],
    [USER, calls(ONE, content="<think>\nhm\n</think>\n\nNow"), answer("Rain."), ASSISTANT, USER, calls(ONE, content=None), answer("Sun.")],
    [USER, calls(ONE, content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), answer("Rain."), USER],
    [USER, said("assistant", ""), USER, said("assistant", "\n"), said("user", ""), ASSISTANT, USER],
    [said("system", ""), USER, ASSISTANT, answer("Rain."), answer(""), USER],
    [SYSTEM, USER, ASSISTANT, SYSTEM, USER, calls(ONE, content="\n\n"), answer("<tool_response>"), USER],
]


class Model:
    enable_prompt_embeds = False


class Parser:
    model_config = Model

    def mm_placeholder_storage(self):
        return {}


class Tracker:
    model_config = Model

    def create_parser(self, mm_processor_kwargs=None):
        return Parser()


def prompt(template, tools, messages, generation):
    request = {"model": "m", "messages": messages}
    if tools is not None:
        request["tools"] = json.loads(tools)
    try:
        request = ChatCompletionRequest.model_validate(copy.deepcopy(request))
        given = None if request.tools is None else [tool.model_dump() for tool in request.tools]
        conversation = []
        for message in request.messages:
            form = _detect_content_format(template, default="string")
            conversation += chat_utils._parse_chat_message_content(message, Tracker(), form, False)
        chat_utils._postprocess_messages(conversation)
        prompts, _ = render_jinja_template([conversation], given, chat_template=template, add_generation_prompt=generation,
                                           bos_token="<s>", eos_token="</s>")
        return prompts[0]
    except Exception as why:
        print("refused:", type(why).__name__, str(why)[:100].replace("\n", " "))
        return None


def shared(one, other):
    same = next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    return same


recorded = {"sets": SETS, "chats": CHATS, "templates": {}}
for name in TEMPLATES:
    template = (pathlib.Path("templates") / f"{name}.jinja").read_text()
    recorded["templates"][name], last = [], ""
    for tools in SETS:
        for place, messages in enumerate(CHATS):
            # The first two without an answer, too.
            for generation in [True, False] if place in (0, 5) else [True]:
                text = prompt(template, tools, messages, generation)
                if text is None:
                    recorded["templates"][name].append(None)
                    continue
                same = shared(last, text)
                recorded["templates"][name].append([same, text[same:]])
                last = text
pathlib.Path("tools.json").write_text(json.dumps(recorded, ensure_ascii=False, separators=(",", ":")) + "\n")
