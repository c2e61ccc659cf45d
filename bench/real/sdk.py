#!/usr/bin/env python3
"""Runs the openai SDK through a front: model lists, whole and streamed replies, tools, errors, a client that
leaves early.

    bench/real/sdk.py URL          needs the `openai` package
"""

import sys

import openai

MESSAGES = [{"role": "user", "content": "Name a prime."}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}}}


def main():
    client = openai.OpenAI(base_url=sys.argv[1].rstrip("/") + "/v1", api_key="x", max_retries=0)
    model = next(iter(client.models.list())).id
    assert client.models.retrieve(model).id == model
    checks = (whole_and_streamed_agree, completions, tools, unknown_model, too_long, leave_early)
    for check in checks:
        check(client, model)
    print(f"openai {openai.__version__}: {', '.join(check.__name__.replace('_', ' ') for check in checks)}: ok")


def whole_and_streamed_agree(client, model):
    asked = {"model": model, "messages": MESSAGES, "max_tokens": 8, "temperature": 0,
             "extra_body": {"ignore_eos": True}}
    whole = client.chat.completions.create(**asked)
    assert whole.usage.completion_tokens == 8 and whole.choices[0].finish_reason == "length", whole
    text, usage = "", None
    for event in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = event.usage or usage
        text += "".join(choice.delta.content or "" for choice in event.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    assert usage.completion_tokens == 8, usage


def completions(client, model):
    events = client.completions.create(model=model, prompt="The list", max_tokens=8, temperature=0, stream=True)
    assert "".join(choice.text for event in events for choice in event.choices)
    batch = client.completions.create(model=model, prompt=[[7, 8, 9], [10, 11, 12]], max_tokens=2)
    assert [choice.index for choice in batch.choices] == [0, 1], batch


def tools(client, model):
    """An engine may refuse tools; if it replies, the reply must hold a call or text."""
    named = {"type": "function", "function": {"name": "f"}}
    try:
        reply = client.chat.completions.create(
            model=model, messages=MESSAGES, tools=[TOOL], tool_choice=named, max_tokens=64, temperature=0)
    except openai.BadRequestError:
        return
    message = reply.choices[0].message
    # A model that spends its tokens inside the call returns it as text.
    assert message.tool_calls or message.content, reply


def unknown_model(client, model):
    try:
        client.chat.completions.create(model=model + "-unknown", messages=MESSAGES)
    except openai.NotFoundError as error:
        assert error.body["type"] == "NotFoundError", error.body
    else:
        raise AssertionError("no error for an unknown model")


def too_long(client, model):
    """The engine's own error must come through."""
    longest = getattr(client.models.retrieve(model), "max_model_len", None) or 32_768
    try:
        client.completions.create(model=model, prompt=[7] * (longest + 1), max_tokens=1)
    except openai.BadRequestError as error:
        assert error.status_code == 400
    else:
        raise AssertionError("no error for a prompt beyond the context")


def leave_early(client, model):
    stream = client.chat.completions.create(
        model=model, messages=MESSAGES, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()


if __name__ == "__main__":
    main()
