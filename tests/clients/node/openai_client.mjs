// openai-node: the official library for JavaScript.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { apiKey, baseURL, long, model, question, run } from "./replaying.mjs";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const asked = [
  { role: "developer", content: "Answer in one sentence." },
  { role: "user", content: [{ type: "text", text: question }] },
];

function create(options) {
  return client.chat.completions.create({ model, messages: asked, max_completion_tokens: 30, ...options });
}

async function chat() {
  const answer = await create({ temperature: 0, metadata: { team: "web" }, reasoning_effort: "low" });
  assert.ok(answer.choices[0].message.content);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
}

async function stream() {
  let text = "";
  let usage;
  for await (const chunk of await create({ stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.ok(text);
  assert.ok(usage.completion_tokens > 0);
}

async function streamHelper() {
  const events = client.chat.completions.stream({ model, messages: asked, temperature: 0 });
  let text = "";
  events.on("content", (delta) => (text += delta));
  const whole = await events.finalChatCompletion();
  assert.equal(text, whole.choices[0].message.content);
}

async function secondTurn() {
  const messages = [...asked];
  for (const next of ["And a node?", "And a service?"]) {
    const answer = await create({ messages });
    messages.push(answer.choices[0].message, { role: "user", content: next });
  }
  assert.equal(messages.length, 6);
}

async function completion() {
  const answer = await client.completions.create({ model, prompt: "A pod is", max_tokens: 10 });
  assert.ok(answer.choices[0].text);
}

async function historyOfTools() {
  const call = { id: "call_1", type: "function", function: { name: "pods", arguments: "{}" } };
  const messages = [
    ...asked,
    { role: "assistant", content: null, tool_calls: [call] },
    { role: "tool", tool_call_id: "call_1", content: "3" },
  ];
  const answer = await create({ messages });
  assert.ok(answer.choices[0].message.content);
}

async function rawAnswer() {
  const { data, response, request_id: id } = await create({}).withResponse();
  assert.equal(response.headers.get("x-request-id"), id);
  assert.equal(data.object, "chat.completion");
}

async function errors() {
  await assert.rejects(create({ model: "gpt-4o" }), OpenAI.NotFoundError);
  await assert.rejects(create({ temperature: 2.1 }), { status: 400, param: "temperature" });
  await assert.rejects(create({ messages: [{ role: "user", content: long }] }), {
    status: 400,
    code: "context_length_exceeded",
  });
  await assert.rejects(new OpenAI({ baseURL, apiKey: "wrong" }).models.list(), OpenAI.AuthenticationError);
}

async function leaving() {
  const chunks = await create({ stream: true });
  for await (const _ of chunks) break;
  assert.ok(chunks.controller.signal.aborted);
}

await run(chat, stream, streamHelper, secondTurn, completion, historyOfTools, rawAnswer, errors, leaving);
