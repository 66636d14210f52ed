// The identity provider of tests/oidc.rs: `node provider.mjs MODULES` prints its address, then reads lines:
//   redirect URL   an address to which browsers may be sent back; the provider answers from then on
//   rotate         signs with a new key from now on, and publishes no other one
// Everybody who asks signs in as `ann` of the group `ops`. The provider ends with its standard input.

import http from "node:http";
import readline from "node:readline";
import { generateKeyPairSync, randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.argv[2] + "/");
const { Provider } = await import(pathToFileURL(require.resolve("oidc-provider")));

// The library says what a site should set; standard output is for the test.
console.info = console.warn = () => {};
let answer = (_, res) => { res.statusCode = 503; res.end(); };
const server = http.createServer((req, res) => answer(req, res));
const key = () => {
  const jwk = generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" });
  return { ...jwk, use: "sig", alg: "RS256", kid: randomUUID() };
};

function start(issuer, redirects) {
  const api = { scope: "api", audience: "linkwise-api", accessTokenFormat: "jwt", accessTokenTTL: 600 };
  const provider = new Provider(issuer, {
    clients: [
      { client_id: "linkwise", client_secret: "its/secret+&", redirect_uris: redirects, response_types: ["code"], grant_types: ["authorization_code"] },
      { client_id: "agent-7", client_secret: "agents", redirect_uris: [], response_types: [], grant_types: ["client_credentials"] },
    ],
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: { enabled: true, defaultResource: () => "urn:linkwise:api", getResourceServerInfo: () => api },
    },
    claims: { openid: ["sub", "groups"] },
    conformIdTokenClaims: false,
    pkce: { required: () => true },
    cookies: { keys: ["a key of the test"] },
    jwks: { keys: [key()] },
    ttl: { IdToken: 600, Interaction: 600, Session: 600, Grant: 600, AuthorizationCode: 60, ClientCredentials: 600 },
    findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, groups: ["ops", "all"] }) }),
    extraTokenClaims: () => ({ groups: ["agents"] }),
    interactions: { url: (_, i) => `/interaction/${i.uid}` },
  });
  const callback = provider.callback();
  answer = async (req, res) => {
    if (!req.url.startsWith("/interaction/")) return callback(req, res);
    const { prompt, params, session } = await provider.interactionDetails(req, res);
    if (prompt.name === "login") return provider.interactionFinished(req, res, { login: { accountId: "ann" } });
    const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
    grant.addOIDCScope("openid");
    grant.addResourceScope("urn:linkwise:api", "api");
    return provider.interactionFinished(req, res, { consent: { grantId: await grant.save() } }, { mergeWithLastSubmission: true });
  };
}

server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const redirects = [];
  console.log(issuer);
  const lines = readline.createInterface({ input: process.stdin });
  lines.on("line", (line) => {
    const [what, url] = line.split(" ");
    if (what === "redirect") redirects.push(url);
    start(issuer, redirects);
    console.log("ready");
  });
  lines.on("close", () => process.exit(0));
});
