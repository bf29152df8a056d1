// The frame of a client program: it runs the replays and prints one line of JSON for each.
//
//     node PROGRAM BASE_URL API_KEY [REPLAY ...]
//
// Without names, all replays run. Each is a function whose failure is an exception.

export const [baseURL, apiKey, ...names] = process.argv.slice(2);
export const model = "demo";
export const question = "What is a pod?";
export const long = "pod ".repeat(4096); // does not fit into the demo model's context

export async function run(...replays) {
  for (const replay of replays) {
    if (names.length === 0 || names.includes(replay.name)) {
      console.log(JSON.stringify({ replay: replay.name, error: await errorOf(replay) }));
    }
  }
}

async function errorOf(replay) {
  try {
    await replay();
    return null;
  } catch (error) {
    const line = error.stack?.split("\n").findLast((entry) => entry.includes("_client.mjs"));
    return `${error.name}: ${error.message} ${line?.trim() ?? ""}`;
  }
}
