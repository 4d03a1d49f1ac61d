// The items of the conversation as elements, which stay the same while their item does, and the reader's place in them.

import type { Item } from '../viewMessages';
import { parseBlocks, splitBlocks } from './markdown.js';
import { CodeActions, MarkdownText, button, element } from './render.js';

/** The distance from the end in pixels within which a reader counts as following the answer. */
const FOLLOW_PIXELS = 40;

interface Shown {
  item: Item;
  root: HTMLElement;
  body: MarkdownText | HTMLElement;
  thinking?: { root: HTMLDetailsElement; text: HTMLElement };
}

export interface ConversationActions extends CodeActions {
  earlier(): void;
}

export class Conversation {
  private shown = new Map<string, Shown>();
  private isFollowing = true;
  /** The position to which the page scrolled last while it followed the answer. */
  private followedTo = 0;
  private readonly earlier: HTMLButtonElement;

  constructor(
    private readonly root: HTMLElement,
    private readonly newest: HTMLElement,
    private readonly actions: ConversationActions,
  ) {
    this.earlier = button('Earlier messages', 'Show earlier messages', () => actions.earlier());
    this.earlier.classList.add('earlier');
    root.addEventListener('scroll', () => this.scrolled(), { passive: true });
    newest.addEventListener('click', () => this.toEnd());
    new ResizeObserver(() => {
      if (this.isFollowing) this.toEnd();
    }).observe(root);
  }

  /** Shows all items; elements of items that were shown stay, and so does what the reader sees. */
  setAll(items: Item[], hasEarlier: boolean, isOther: boolean): void {
    if (isOther) this.clear();
    const anchor = this.isFollowing ? undefined : this.anchor();
    const keys = new Set(items.map((item) => item.key));
    for (const [key, { root }] of this.shown) {
      if (keys.has(key)) continue;
      root.remove();
      this.shown.delete(key);
    }
    let previous: ChildNode | null = null;
    for (const item of items) {
      const { root } = this.update(item);
      const next: ChildNode | null = previous ? previous.nextSibling : this.root.firstChild;
      if (next !== root) this.root.insertBefore(root, next);
      previous = root;
    }
    if (hasEarlier) this.root.prepend(this.earlier);
    else this.earlier.remove();
    if (!items.length) this.root.append(emptyText());
    this.keepPlace(anchor);
  }

  /** Shows an item that is new or changed. */
  set(item: Item): void {
    const isNew = !this.shown.has(item.key);
    const { root } = this.update(item);
    if (isNew) {
      this.root.querySelector('.empty')?.remove();
      this.root.append(root);
    }
    if (isNew && item.kind === 'user') this.isFollowing = true;
    this.keepPlace();
  }

  append(key: string, text?: string, thinking?: string): void {
    const shown = this.shown.get(key);
    if (!shown) return;
    if (thinking) {
      shown.item.thinking = (shown.item.thinking ?? '') + thinking;
      this.setThinking(shown);
    }
    if (text && shown.body instanceof MarkdownText) {
      shown.item.text += text;
      shown.body.append(text);
    }
    this.keepPlace();
  }

  rekey(from: string, to: string): void {
    const shown = this.shown.get(from);
    if (!shown) return;
    this.shown.delete(from);
    shown.item.key = to;
    this.shown.set(to, shown);
  }

  /** Moves the view to an item and marks it for a moment. */
  reveal(key: string): void {
    const root = this.shown.get(key)?.root;
    if (!root) return;
    this.isFollowing = false;
    root.scrollIntoView({ block: 'start' });
    root.classList.add('revealed');
    root.addEventListener('animationend', () => root.classList.remove('revealed'), { once: true });
  }

  toEnd(): void {
    this.isFollowing = true;
    this.root.scrollTop = this.root.scrollHeight;
    this.followedTo = this.root.scrollTop;
    this.newest.hidden = true;
  }

  private clear(): void {
    this.shown.clear();
    this.root.replaceChildren();
    this.isFollowing = true;
  }

  private update(item: Item): Shown {
    let shown = this.shown.get(item.key);
    if (!shown || shown.item.kind !== item.kind) {
      const fresh = this.create(item);
      shown?.root.replaceWith(fresh.root);
      shown = fresh;
      this.shown.set(item.key, shown);
      return shown;
    }
    const isSame = JSON.stringify(shown.item) === JSON.stringify(item);
    shown.item = item;
    if (!isSame) this.fill(shown);
    return shown;
  }

  private create(item: Item): Shown {
    const root = element('article', item.kind);
    const body = item.kind === 'assistant' ? new MarkdownText(this.actions) : element('div', 'plain');
    const shown: Shown = { item, root, body };
    this.fill(shown);
    return shown;
  }

  private fill(shown: Shown): void {
    const { item, root, body } = shown;
    root.classList.toggle('live', item.live === true);
    const bodyRoot = body instanceof MarkdownText ? body.root : body;
    const parts: HTMLElement[] = [];
    if (item.label && item.kind !== 'tool') parts.push(element('div', 'label', item.label));
    this.setThinking(shown);
    if (shown.thinking) parts.push(shown.thinking.root);
    if (body instanceof MarkdownText) body.set(item.text);
    else if (item.kind === 'user') body.replaceChildren(...withFences(item.text));
    else body.textContent = item.text;
    parts.push(item.kind === 'tool' ? foldedTool(item, bodyRoot, root) : bodyRoot);
    if (item.omitted) {
      const text = `${item.omitted.toLocaleString('en')} more characters. Export the session as a page to read them.`;
      parts.push(element('div', 'footer', text));
    }
    if (item.footer) parts.push(element('div', 'footer', item.footer));
    if (item.hint) parts.push(hintElement(item.hint, this.actions));
    // Elements that are there already are not moved: a selection in them survives.
    root.querySelectorAll(':scope > .label, :scope > .footer, :scope > .hint').forEach((node) => node.remove());
    parts.forEach((part, index) => {
      if (root.children[index] !== part) root.insertBefore(part, root.children[index] ?? null);
    });
    while (root.children.length > parts.length) root.lastElementChild!.remove();
  }

  private setThinking(shown: Shown): void {
    const { thinking } = shown.item;
    if (!thinking) return;
    if (!shown.thinking) {
      const text = element('div', 'plain');
      const root = element('details', 'thinking', element('summary', '', 'Thinking'), text);
      shown.thinking = { root, text };
      shown.root.insertBefore(root, shown.root.querySelector(':scope > .markdown, :scope > .plain'));
    }
    const before = shown.thinking.text.textContent ?? '';
    if (thinking.startsWith(before)) shown.thinking.text.append(thinking.slice(before.length));
    else shown.thinking.text.textContent = thinking;
  }

  private get isAtEnd(): boolean {
    const { scrollTop, scrollHeight, clientHeight } = this.root;
    return scrollHeight - scrollTop - clientHeight < FOLLOW_PIXELS;
  }

  private scrolled(): void {
    this.notePosition();
    if (this.isFollowing) this.newest.hidden = true;
  }

  /** Follows a reader who is at the end, and no longer one who moved up; a view that became smaller is no move. */
  private notePosition(): void {
    const { scrollTop } = this.root;
    if (this.isAtEnd) {
      this.isFollowing = true;
      this.followedTo = scrollTop;
    } else if (scrollTop < this.followedTo - 1) {
      this.isFollowing = false;
      this.followedTo = 0;
    }
  }

  /** Returns the first item that the reader sees, and where it is. */
  private anchor(): { root: HTMLElement; top: number } | undefined {
    const top = this.root.getBoundingClientRect().top;
    for (const { root } of this.shown.values()) {
      const box = root.getBoundingClientRect();
      if (box.bottom > top) return { root, top: box.top };
    }
    return undefined;
  }

  private keepPlace(anchor?: { root: HTMLElement; top: number }): void {
    // The event of a scroll comes a frame later than a piece of the answer may; the position itself is up to date.
    if (this.root.scrollTop < this.followedTo - 1 && !this.isAtEnd) this.isFollowing = false;
    if (this.isFollowing) return this.toEnd();
    this.followedTo = 0;
    if (anchor?.root.isConnected) this.root.scrollTop += anchor.root.getBoundingClientRect().top - anchor.top;
    this.newest.hidden = this.isAtEnd;
  }
}

/** The text of a person as it was typed; only what is fenced looks like code. */
function withFences(text: string): Node[] {
  const nodes: Node[] = [];
  let end = 0;
  for (const { start, source } of splitBlocks(text).filter((block) => /^ {0,3}(?:```|~~~)/.test(block.source))) {
    const [block] = parseBlocks(source);
    if (block.type !== 'code') continue;
    nodes.push(document.createTextNode(text.slice(end, start).trimEnd()), element('pre', '', block.text));
    end = start + source.length;
  }
  const rest = text
    .slice(end)
    .replace(end ? /^\n+/ : '', '')
    .trimEnd();
  return [...nodes, document.createTextNode(rest)];
}

/** A call of a tool is one line that opens. */
function foldedTool(item: Item, body: HTMLElement, root: HTMLElement): HTMLElement {
  const known = root.querySelector<HTMLDetailsElement>(':scope > details.call');
  if (known) {
    known.querySelector('summary')!.textContent = item.label ?? 'tool';
    return known;
  }
  return element('details', 'call', element('summary', '', item.label ?? 'tool'), body);
}

/** Shows the command that helps, with a button that copies it. */
export function hintElement(hint: string, actions: { copy(text: string): void }): HTMLElement {
  const copy = button('Copy', 'Copy this command', () => actions.copy(hint));
  return element('div', 'hint', element('span', '', 'try: '), element('code', '', hint), copy);
}

function emptyText(): HTMLElement {
  return element(
    'p',
    'empty',
    'Every message is kept and can be found again. Ask something, or send a selection from the editor.',
  );
}
