// An agent of the Vercel AI SDK: node vercel_agent.mjs MODULES PROVIDER MODEL URL
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
const [modules, provider, model, url] = process.argv.slice(2);
const require = createRequire(`${modules}/x.js`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { streamText, stepCountIs, tool } = await load("ai");
const { z } = await load("zod");
const made = await load(`@ai-sdk/${provider}`);
const create = {
  openai: made.createOpenAI,
  anthropic: made.createAnthropic,
  google: made.createGoogleGenerativeAI,
}[provider];
const bash = tool({
  description: "Run a command.",
  inputSchema: z.object({ command: z.string() }),
  execute: async ({ command }) =>
    command.startsWith("seq") ? Array.from({ length: 6000 }, (_, n) => n + 1).join("\n") : "short",
});
const result = streamText({
  model: create({ baseURL: url, apiKey: "k" })(model),
  tools: { bash },
  prompt: "count",
  stopWhen: stepCountIs(9),
  providerOptions: { openai: { store: false } },
});
for await (const part of result.textStream) process.stdout.write(part);
