// Markdown as elements of the page, and texts that grow while an answer arrives. Text is only ever set as text.

import { Block, Inline, MarkdownSource, parseBlocks } from './markdown.js';

/** The actions of the buttons of a block of code. */
export interface CodeActions {
  copy(text: string): void;
  insert(text: string): void;
}

/** Returns a new element with a class and children. */
export function element<K extends keyof HTMLElementTagNameMap>(
  name: K,
  className = '',
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** Returns a button. */
export function button(label: string, title: string, action: () => void): HTMLButtonElement {
  const node = element('button', 'small', label);
  node.type = 'button';
  node.title = title;
  node.addEventListener('click', action);
  return node;
}

/** A Markdown text in the page. Appending draws only the blocks at its end. */
export class MarkdownText {
  readonly root = element('div', 'markdown');
  private source = new MarkdownSource();
  private text = '';

  constructor(private readonly actions: CodeActions) {}

  /** Shows a text; keeps what is drawn if the text only grew. */
  set(text: string): void {
    if (!text.startsWith(this.text)) {
      this.text = '';
      this.source = new MarkdownSource();
      this.root.replaceChildren();
    }
    this.append(text.slice(this.text.length));
  }

  append(piece: string): void {
    if (!piece) return;
    this.text += piece;
    const before = this.source.blocks.slice(-2);
    const kept = this.source.append(piece);
    this.source.blocks.slice(kept).forEach((source, index) => this.draw(kept + index, source, before[index]));
    while (this.root.childNodes.length > this.source.blocks.length) this.root.lastChild!.remove();
  }

  private draw(position: number, source: string, before: string | undefined): void {
    const old = this.root.childNodes[position];
    if (old && source === before) return;
    const [block] = parseBlocks(source);
    if (old instanceof HTMLElement && block.type === 'code' && old.classList.contains('code')) {
      // A block that grows stays the same element: a selection in it, and where it is scrolled to, survive.
      const code = old.querySelector('code')!;
      const shown = code.textContent ?? '';
      if (old.dataset.language === block.language && block.text.startsWith(shown)) {
        code.append(block.text.slice(shown.length));
        code.normalize();
        return;
      }
    }
    const node = blockElement(block, this.actions);
    if (old) old.replaceWith(node);
    else this.root.append(node);
  }
}

function blockElement(block: Block, actions: CodeActions): HTMLElement {
  switch (block.type) {
    case 'paragraph':
      return element('p', '', ...inlines(block.children));
    case 'heading':
      return element(`h${block.level}` as 'h1', '', ...inlines(block.children));
    case 'rule':
      return element('hr');
    case 'quote':
      return element('blockquote', '', ...block.children.map((child) => blockElement(child, actions)));
    case 'code':
      return codeElement(block.language, block.text, actions);
    case 'table':
      return tableElement(block);
    case 'list': {
      const items = block.items.map((item) => element('li', '', ...itemNodes(item, block.tight, actions)));
      const node = block.start === undefined ? element('ul', '', ...items) : element('ol', '', ...items);
      if (node instanceof HTMLOListElement) node.start = block.start ?? 1;
      return node;
    }
  }
}

function itemNodes(blocks: Block[], isTight: boolean, actions: CodeActions): Node[] {
  return blocks.flatMap((block) =>
    isTight && block.type === 'paragraph' ? inlines(block.children) : [blockElement(block, actions)],
  );
}

function codeElement(language: string, text: string, actions: CodeActions): HTMLElement {
  const code = element('code', '', text);
  const current = () => code.textContent ?? '';
  const head = element('div', 'code-head', element('span', '', language));
  head.append(
    button('Copy', 'Copy this code', () => actions.copy(current())),
    button('Insert', 'Insert this code at the cursor', () => actions.insert(current())),
  );
  const node = element('div', 'code', head, element('pre', '', code));
  node.dataset.language = language;
  return node;
}

function tableElement(block: Extract<Block, { type: 'table' }>): HTMLElement {
  const row = (cells: Inline[][], name: 'th' | 'td') =>
    element(
      'tr',
      '',
      ...cells.map((cell, index) => {
        const node = element(name, '', ...inlines(cell));
        if (block.align[index]) node.classList.add(`align-${block.align[index]}`);
        return node;
      }),
    );
  const [head, ...rest] = block.rows;
  const body = element('tbody', '', ...rest.map((cells) => row(cells, 'td')));
  return element('div', 'table', element('table', '', element('thead', '', row(head, 'th')), body));
}

function inlines(nodes: Inline[]): Node[] {
  return nodes.map((node) => {
    switch (node.type) {
      case 'text':
        return document.createTextNode(node.text);
      case 'code':
        return element('code', '', node.text);
      case 'break':
        return element('br');
      case 'link': {
        const link = element('a', '', ...inlines(node.children));
        link.href = node.href;
        link.title = node.href;
        link.rel = 'noreferrer';
        return link;
      }
      default:
        return element(node.type, '', ...inlines(node.children));
    }
  });
}
