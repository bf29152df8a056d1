// openai-node: structured output with zod, and tools, of chats and of responses.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { apiKey, baseURL, model, run } from "./replaying.mjs";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const weather = [{ role: "user", content: "What is the weather in Oslo?" }];
const person = [{ role: "user", content: "Ada is 36 years old." }];
const options = { model, temperature: 0, max_tokens: 300 };

const Person = z.object({ name: z.string(), age: z.number().int() });
// The demo model was not trained for it: only the grammar makes it valid.
const Order = z.object({ size: z.enum(["small", "large"]), toppings: z.array(z.enum(["cheese", "basil"])).max(3) });
const City = z.object({ city: z.string() });

const cities = [];
const getWeather = zodFunction({
  name: "get_weather",
  description: "Get the weather in a city.",
  parameters: City,
  function: ({ city }) => {
    cities.push(city);
    return "21 °C, sunny";
  },
});

async function parse() {
  const answer = await client.chat.completions.parse({
    ...options,
    messages: person,
    response_format: zodResponseFormat(Person, "person"),
  });
  Person.parse(answer.choices[0].message.parsed);
}

async function parseAnotherSchema() {
  const answer = await client.chat.completions.parse({
    ...options,
    temperature: 1.5,
    messages: person,
    response_format: zodResponseFormat(Order, "order"),
  });
  Order.parse(answer.choices[0].message.parsed);
}

async function parseStream() {
  const stream = client.chat.completions.stream({
    ...options,
    messages: person,
    response_format: zodResponseFormat(Person, "person"),
  });
  const whole = await stream.finalChatCompletion();
  Person.parse(whole.choices[0].message.parsed);
}

async function call() {
  const answer = await client.chat.completions.parse({
    ...options,
    messages: weather,
    tools: [getWeather],
    tool_choice: "required",
  });
  assert.equal(answer.choices[0].finish_reason, "tool_calls");
  for (const { function: each } of answer.choices[0].message.tool_calls) City.parse(each.parsed_arguments);
}

async function streamedCall() {
  const calls = [];
  const chunks = await client.chat.completions.create({
    ...options,
    messages: weather,
    tools: [{ type: "function", function: { name: "get_weather", parameters: z.toJSONSchema(City) } }],
    tool_choice: "required",
    stream: true,
  });
  for await (const chunk of chunks) {
    for (const piece of chunk.choices[0]?.delta.tool_calls ?? []) {
      calls[piece.index] = (calls[piece.index] ?? "") + (piece.function.arguments ?? "");
    }
  }
  assert.ok(calls.length > 0);
  for (const text of calls) City.parse(JSON.parse(text));
}

async function runTools() {
  for (const stream of [false, true]) {
    cities.length = 0;
    const runner = client.chat.completions.runTools({ ...options, messages: weather, tools: [getWeather], stream });
    assert.ok(await runner.finalContent());
    assert.equal(cities.length, 1);
    const roles = runner.messages.map((message) => message.role);
    assert.deepEqual(roles, ["user", "assistant", "tool", "assistant"]);
  }
}

async function responsesParse() {
  const answer = await client.responses.parse({
    model,
    temperature: 0,
    max_output_tokens: 300,
    input: person,
    text: { format: zodTextFormat(Person, "person") },
  });
  Person.parse(answer.output_parsed);
}

async function errors() {
  const schema = { type: "array", items: { type: "null" }, minItems: 1e9 };
  const format = { type: "json_schema", json_schema: { name: "bomb", schema } };
  const asking = client.chat.completions.create({ ...options, messages: person, response_format: format });
  await assert.rejects(asking, (error) => error instanceof OpenAI.BadRequestError && /minItems/.test(error.message));
}

await run(parse, parseAnotherSchema, parseStream, call, streamedCall, runTools, responsesParse, errors);
