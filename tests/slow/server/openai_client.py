"""PyPI's openai against servers of tests/slow/server/openai_test.cpp.

    openai_client.py PORT SCRIPTED_PORT     PORT: a model with random weights; SCRIPTED_PORT: one that calls a tool
"""

import sys
from typing import Literal

import openai
import pydantic

MESSAGES = [{"role": "user", "content": "x"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


class Answer(pydantic.BaseModel):
    certain: bool
    choice: Literal["a", "b"]
    steps: list[int] = pydantic.Field(min_length=1, max_length=2)


def client_of(port, key="right"):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0)


def refused(kind, call, param=None):
    try:
        call()
    except kind as error:
        assert param is None or error.param == param, (error.param, param)
        return
    raise AssertionError(f"{kind} was expected")


def check_completions(client):
    same = dict(model="tiny", prompt="Hello", max_tokens=12, seed=3, logprobs=2)
    whole = client.completions.create(**same)
    assert whole.usage.completion_tokens <= 12
    parts = list(client.completions.create(stream=True, stream_options={"include_usage": True}, **same))
    assert "".join(p.choices[0].text for p in parts if p.choices) == whole.choices[0].text
    assert parts[-1].usage == whole.usage
    assert len(client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=3).choices) == 4


def check_chats(client):
    same = dict(model="tiny", messages=MESSAGES, max_completion_tokens=12, seed=3, n=2)
    whole = client.chat.completions.create(logprobs=True, top_logprobs=2, **same)
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
    said = ["", ""]
    for part in client.chat.completions.create(stream=True, **same):
        said[part.choices[0].index] += part.choices[0].delta.content or ""
    assert said == [choice.message.content for choice in whole.choices]
    with client.chat.completions.stream(model="tiny", messages=MESSAGES, max_tokens=5, seed=1) as stream:
        assert "chunk" in {event.type for event in stream}
        assert stream.current_completion_snapshot.choices[0].finish_reason in ("stop", "length")


def check_tools(client):
    same = dict(model="tiny", messages=MESSAGES, tools=TOOLS, temperature=0)
    choice = client.chat.completions.create(**same).choices[0]
    assert choice.finish_reason == "tool_calls", choice
    call = choice.message.tool_calls[0]
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 1}'), call
    with client.chat.completions.stream(**same) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert streamed.function.arguments == call.function.arguments
    # Sends back the result of the call.
    answer = {"role": "tool", "tool_call_id": call.id, "content": "2"}
    client.chat.completions.create(
        model="tiny", messages=[*MESSAGES, choice.message, answer], tools=TOOLS, max_tokens=3)


def check_forms(client):
    # With integers of any length, a random model might never end.
    bias = {str(ord(digit)): -30 for digit in "0123456789"}
    chat = client.chat.completions
    answer = chat.parse(model="tiny", messages=MESSAGES, response_format=Answer, logit_bias=bias, temperature=0.5)
    assert isinstance(answer.choices[0].message.parsed, Answer)
    calls = chat.create(model="tiny", messages=MESSAGES, tools=TOOLS, tool_choice="required").choices[0].message
    assert calls.tool_calls[0].function.name == "add"


def check_embeddings(client):
    packed = client.embeddings.create(model="tiny", input=["a", "b"]).data  # the client requests base64
    plain = client.embeddings.create(model="tiny", input=["a", "b"], encoding_format="float").data
    assert [one.embedding for one in packed] == [one.embedding for one in plain]


def check_errors(client, port):
    chat = client.chat.completions.create
    refused(openai.AuthenticationError, lambda: client_of(port, "wrong").models.list())
    refused(openai.NotFoundError, lambda: chat(model="other", messages=MESSAGES), "model")
    refused(openai.BadRequestError, lambda: chat(model="tiny", messages=MESSAGES, temperature=3), "temperature")
    refused(openai.BadRequestError, lambda: chat(model="tiny", messages=[]), "messages")
    refused(openai.BadRequestError, lambda: client.completions.create(model="tiny", prompt="x" * 1000), "prompt")


def main():
    port, scripted_port = sys.argv[1:]
    client = client_of(port)
    assert [model.id for model in client.models.list()] == ["tiny"]
    check_completions(client)
    check_chats(client)
    check_tools(client_of(scripted_port))
    check_forms(client)
    check_embeddings(client)
    check_errors(client, port)
    print("all well")


main()
