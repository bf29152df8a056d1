// Vercel's AI SDK with its provider for OpenAI-compatible servers.

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, streamText } from "ai";
import { apiKey, baseURL, long, model, question, run } from "./replaying.mjs";

const kvasir = createOpenAICompatible({ name: "kvasir", baseURL, apiKey, includeUsage: true });
const asked = [{ role: "user", content: question }];

function options(more) {
  return { model: kvasir(model), system: "Answer in one sentence.", messages: asked, maxOutputTokens: 30, maxRetries: 0, ...more };
}

async function generate() {
  const { text, usage, finishReason } = await generateText(
    options({ temperature: 0.5, providerOptions: { kvasir: { user: "me", reasoningEffort: "low", top_k: 20 } } }),
  );
  assert.ok(text);
  assert.ok(usage.totalTokens > 0);
  assert.ok(["stop", "length"].includes(finishReason));
}

async function stream() {
  const result = streamText(options({ onError: ({ error }) => { throw error; } }));
  let text = "";
  for await (const delta of result.textStream) text += delta;
  assert.ok(text);
  assert.ok((await result.usage).outputTokens > 0);
}

async function secondTurn() {
  const messages = [...asked];
  for (const next of ["And a node?", "And a service?"]) {
    const { response } = await generateText(options({ messages }));
    messages.push(...response.messages, { role: "user", content: [{ type: "text", text: next }] });
  }
  assert.equal(messages.length, 5);
}

async function reasoningInHistory() {
  const answer = { role: "assistant", content: [{ type: "reasoning", text: "Hm." }, { type: "text", text: "A group." }] };
  const { text } = await generateText(options({ messages: [...asked, answer, { role: "user", content: "Why?" }] }));
  assert.ok(text);
}

async function completion() {
  const { text } = await generateText({
    model: kvasir.completionModel(model),
    prompt: "A pod is",
    maxOutputTokens: 10,
    maxRetries: 0,
  });
  assert.equal(typeof text, "string");
}

async function errors() {
  await assert.rejects(generateText(options({ temperature: 2.1 })), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /temperature/);
    return true;
  });
  await assert.rejects(generateText(options({ messages: [{ role: "user", content: long }] })), /maximum context length/);
}

await run(generate, stream, secondTurn, reasoningInHistory, completion, errors);
