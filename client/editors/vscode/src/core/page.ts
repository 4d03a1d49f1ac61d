// The page of the chat. Its policy allows one script of the extension with a nonce, its style sheet, and nothing else.

import { randomBytes } from 'node:crypto';

export interface PageOptions {
  nonce: string;
  /** The source of the extension's files in the policy. */
  source: string;
  script: string;
  style: string;
}

/** Returns a nonce for one page. */
export function newNonce(): string {
  return randomBytes(24).toString('base64url');
}

/** Returns the HTML of the page. */
export function chatPage({ nonce, source, script, style }: PageOptions): string {
  const policy = [
    "default-src 'none'",
    `script-src 'nonce-${nonce}'`,
    `style-src ${source}`,
    "base-uri 'none'",
    "form-action 'none'",
  ].join('; ');
  return `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${attribute(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="${attribute(style)}">
<title>ollm</title>
</head>
<body>
<header id="bar" aria-label="Window">
  <button id="model" type="button" title="Choose the model"></button>
  <span id="phase" role="status"></span>
  <button id="window" type="button" title="Show the context"><span id="gauge"><span id="level"></span></span><span id="tokens"></span></button>
</header>
<div id="notice" role="alert" hidden></div>
<main id="conversation" tabindex="0" aria-label="Conversation"></main>
<button id="newest" type="button" hidden>↓ Newest</button>
<footer id="composer">
  <div id="refused" role="alert" hidden></div>
  <textarea id="draft" rows="2" placeholder="Ask the model (Enter sends, Shift+Enter is a new line)" aria-label="Message"></textarea>
  <div id="actions">
    <button id="retry" type="button" hidden>Ask again</button>
    <span class="space"></span>
    <button id="stop" type="button" hidden>Stop</button>
    <button id="send" type="button">Send</button>
  </div>
</footer>
<script type="module" nonce="${attribute(nonce)}" src="${attribute(script)}"></script>
</body>
</html>
`;
}

function attribute(text: string): string {
  return text.replace(/&/g, '&amp;').replace(/"/g, '&quot;').replace(/</g, '&lt;').replace(/>/g, '&gt;');
}
