// The page of the chat: shows what the extension posts, and posts what a person does.

import type { Bar, FromPage, Notice, ToPage } from '../viewMessages';
import { Conversation, hintElement } from './conversation.js';

interface PageState {
  draft: string;
}

declare function acquireVsCodeApi(): {
  postMessage(message: FromPage): void;
  getState(): PageState | undefined;
  setState(state: PageState): void;
};

const host = acquireVsCodeApi();
const find = <T extends HTMLElement>(id: string) => document.getElementById(id) as T;
const draft = find<HTMLTextAreaElement>('draft');
const [send, stop, retry] = ['send', 'stop', 'retry'].map((id) => find<HTMLButtonElement>(id));
const actions = {
  copy: (text: string) => host.postMessage({ type: 'copy', text }),
  insert: (text: string) => host.postMessage({ type: 'insert', text }),
  earlier: () => host.postMessage({ type: 'earlier' }),
};
const conversation = new Conversation(find('conversation'), find('newest'), actions);
let sessionId: string | undefined;
let isRunning = false;
let canRetry = false;
let requestId = 0;
/** The request whose message is on its way. Its text stays in the composer until it is accepted. */
let sending = 0;

function submit(): void {
  const text = draft.value;
  if (sending || isRunning || !text.trim()) return;
  requestId += 1;
  sending = requestId;
  find('refused').hidden = true;
  host.postMessage({ type: 'send', requestId, text });
  showButtons();
}

function setDraft(text: string): void {
  draft.value = text;
  host.setState({ draft: text });
  draft.style.height = 'auto';
  draft.style.height = `${Math.min(draft.scrollHeight + 2, Math.max(60, window.innerHeight * 0.4))}px`;
}

function showButtons(): void {
  draft.readOnly = sending !== 0;
  send.hidden = isRunning;
  retry.hidden = isRunning || !canRetry;
  stop.hidden = !isRunning;
  send.disabled = sending !== 0 || !draft.value.trim();
}

function showBar(bar: Bar): void {
  isRunning = bar.running;
  find('model').textContent = bar.model || 'default model';
  const expected = bar.expectedMs ? `, about ${Math.max(1, Math.round(bar.expectedMs / 1000))} s` : '';
  find('phase').textContent = bar.phase && `${bar.phase}${expected}`;
  document.body.classList.toggle('running', bar.running);
  find('window').hidden = !bar.promptLimit;
  const share = bar.promptLimit ? Math.min(1, bar.contextTokens / bar.promptLimit) : 0;
  const level = find('level');
  level.className = share >= 0.95 ? 'full' : share >= 0.85 ? 'high' : '';
  level.style.width = `${Math.round(share * 100)}%`;
  const count = (tokens: number) => (tokens >= 10_000 ? `${Math.round(tokens / 1000)}k` : tokens.toLocaleString('en'));
  const about = bar.isEstimate && bar.contextTokens ? '~' : '';
  find('tokens').textContent = bar.promptLimit
    ? `${about}${count(bar.contextTokens)} of ${count(bar.promptLimit)}`
    : '';
  showButtons();
}

function showNotice(node: HTMLElement, notice: Notice | null): void {
  node.hidden = notice === null;
  node.replaceChildren();
  if (!notice) return;
  node.append(notice.text);
  if (notice.hint) node.append(hintElement(notice.hint, actions));
}

function receive(message: ToPage): void {
  switch (message.type) {
    case 'conversation': {
      // A new chat gets its id with its first message and stays the same conversation.
      const isOther = Boolean(sessionId) && message.sessionId !== sessionId;
      conversation.setAll(message.items, message.hasEarlier, isOther);
      sessionId = message.sessionId;
      canRetry = message.canRetry;
      showButtons();
      if (message.reveal) conversation.reveal(message.reveal);
      break;
    }
    case 'item':
      conversation.set(message.item);
      break;
    case 'delta':
      conversation.append(message.key, message.text, message.thinking);
      break;
    case 'rekey':
      conversation.rekey(message.from, message.to);
      break;
    case 'bar':
      showBar(message.bar);
      break;
    case 'notice':
      showNotice(find('notice'), message.notice);
      break;
    case 'accepted':
      if (message.requestId === sending) {
        sending = 0;
        setDraft('');
      }
      conversation.toEnd();
      showButtons();
      break;
    case 'refused':
      if (message.requestId === sending) sending = 0;
      if (!draft.value.includes(message.text)) setDraft([draft.value, message.text].filter(Boolean).join('\n\n'));
      showNotice(find('refused'), message.notice);
      showButtons();
      break;
    case 'draft':
      setDraft([draft.value, message.text].filter(Boolean).join('\n\n'));
      showButtons();
      draft.focus();
      break;
  }
}

window.addEventListener('message', (event) => receive(event.data as ToPage));
draft.addEventListener('input', () => {
  setDraft(draft.value);
  showButtons();
});
draft.addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  } else if (event.key === 'Escape' && isRunning) {
    host.postMessage({ type: 'stop' });
  }
});
send.addEventListener('click', submit);
stop.addEventListener('click', () => host.postMessage({ type: 'stop' }));
retry.addEventListener('click', () => {
  canRetry = false;
  showButtons();
  host.postMessage({ type: 'retry' });
});
find('model').addEventListener('click', () => host.postMessage({ type: 'command', name: 'chooseModel' }));
find('window').addEventListener('click', () => host.postMessage({ type: 'command', name: 'contextStatus' }));
setDraft(host.getState()?.draft ?? '');
showButtons();
host.postMessage({ type: 'ready' });
