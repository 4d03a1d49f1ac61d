// Parts that need no daemon: fences, titles, plans, transcripts, the page and its policy, Markdown.

import assert from 'node:assert/strict';
import * as fs from 'node:fs';
import * as path from 'node:path';
import { before, describe, it } from 'node:test';
import { fenceFor, fenced, selectedLines } from '../src/core/fence';
import { contextText, entryKey } from '../src/core/memory';
import { chatPage, newNonce } from '../src/core/page';
import type { FilePlan, SessionRecord } from '../src/core/protocol';
import { titleOf } from '../src/core/sessionsModel';
import { ago, clean, clip, inert, modelName, oneLine } from '../src/core/text';
import { canRetry, itemsOf } from '../src/core/transcript';
import { isUnfinished, planQuestion, planRows, planWarnings } from '../src/core/undoPlan';

const root = path.resolve(__dirname, '../..');

describe('texts', () => {
  it('lose control characters and marks that reorder them', () => {
    assert.equal(clean('a\u001b[31mb\u0007\u009b\u202ec\u2066\r\nd\te\u0000'), 'a[31mbc\nd\te');
    assert.equal(oneLine(' a\n\u001b]0;x\u0007 b '), 'a ]0;x b');
    const session = { title: 'evil\u001b]0;title\u0007\nsecond \u202egnp', sessionId: 'x' };
    assert.equal(titleOf(session as never), 'evil]0;title second gnp');
  });

  it('make neither links nor icons in notifications', () => {
    assert.equal(inert('[click](command:x) $(zap)'), '[click] (command:x) $ (zap)');
  });

  it('are never cut within a character', () => {
    assert.equal(clip('ab🙂cd', 4), 'ab…');
    assert.equal(clip('abc', 3), 'abc');
    assert.equal(ago('2026-01-01T00:00:00Z', Date.parse('2026-01-01T02:30:00Z')), '2 h ago');
    assert.equal(ago('nonsense', 0), '');
    assert.equal(modelName('/models/smol.gguf@laptop'), 'smol.gguf@laptop');
    assert.equal(modelName('Qwen/Qwen3-32B@gpu'), 'Qwen/Qwen3-32B@gpu');
  });

  it('make keys for remembered texts', () => {
    assert.match(entryKey('Use port 48213!'), /^remember-use-port-48213-[0-9a-f]{8}$/);
    assert.match(entryKey('端口是 6200'), /^remember-端口是-6200-[0-9a-f]{8}$/);
    assert.match(entryKey('!!!'), /^remember--[0-9a-f]{8}$/);
    // An entry with the same key would be replaced.
    const rule = 'Always answer the questions about the parser';
    assert.notEqual(entryKey(`${rule} in Spanish`), entryKey(`${rule} in English`));
  });
});

describe('fence', () => {
  it('is longer than every fence inside', () => {
    assert.equal(fenceFor('a ``` b ```` c'), '`````');
    assert.equal(fenceFor('none'), '```');
  });

  it('names path, lines and language, and takes the question first', () => {
    const text = fenced(
      { path: 'src/a.ts', language: 'typescript', text: 'let a;\r\n', lines: { first: 3, last: 3 } },
      'Why?',
    );
    assert.equal(text, 'Why?\n\nsrc/a.ts, line 3:\n\n```typescript\nlet a;\n```\n');
    assert.equal(fenced({ path: 'x\u001b\ny', language: 'no good', text: 'a' }), 'x y:\n\n```\na\n```\n');
  });

  it('does not count a line in which the selection only ends', () => {
    assert.deepEqual(selectedLines({ line: 2 }, { line: 5, character: 0 }), { first: 3, last: 5 });
    assert.deepEqual(selectedLines({ line: 2 }, { line: 2, character: 4 }), { first: 3, last: 3 });
  });
});

describe('undo plan', () => {
  const plan: FilePlan = {
    planId: 'p',
    root: '/r',
    counts: { putBack: 2, conflict: 1 },
    files: [
      { path: 'c.txt', status: 'conflict', reason: 'changed since' },
      { path: 'a.txt', status: 'putBack', action: 'replace', loses: ['acl'] },
      { path: 'b\u001b.txt', status: 'putBack', action: 'remove' },
    ],
    unrecorded: [{ seq: 4, tool: 'shell' }],
    unrecordedCalls: 3,
    kept: [{ path: '', file: '.ollm-undo-1/0' }],
  };
  const operations = [{ seq: 5, throughSeq: 7, kind: 'turn', text: 'write files' }];

  it('lists the files that change first, without control characters', () => {
    const rows = planRows(plan);
    assert.deepEqual(
      rows.map((row) => row.label),
      ['a.txt', 'b.txt', 'c.txt'],
    );
    assert.equal(rows[0].description, 'gets another content; loses its access control list');
    assert.match(rows[2].description, /stays: it is not as the session left it \(changed since\)/);
  });

  it('asks with everything that happens and that does not', () => {
    const question = planQuestion('undo', { operations, undoable: 1, redoable: 0, files: plan });
    assert.equal(question.text, 'Undo and put back 2 files? 1 file stays as it is.');
    assert.equal(question.action, 'Undo, 2 Files');
    assert.match(question.detail, /3 tool calls did not say what they wrote/);
    assert.match(question.detail, /\.ollm-undo-1\/0/);
    assert.equal(isUnfinished(plan), false);
    assert.equal(isUnfinished({ ...plan, unrecorded: [{ seq: 1, tool: 'x', unfinished: true }] }), true);
    // The reason for which nothing is put back comes first.
    const unfinished = { ...plan, unlisted: 2, unrecorded: [{ seq: 1, tool: 'x', unfinished: true }] };
    assert.match(planWarnings(unfinished)[0], /nobody knows what x \(record 1\) wrote/);
    assert.equal(
      planWarnings({ ...plan, unlisted: 2, unrecordedCalls: 0, kept: [] })[0],
      '2 more files are not listed',
    );
  });
});

describe('transcript', () => {
  const message = (seq: number, role: string, text: string, more = {}) =>
    ({
      seq,
      at: '',
      type: 'message',
      message: { role, parts: [{ type: 'text', text }], ...more },
    }) as unknown as SessionRecord;

  it('shows messages, tools, compactions and large records', () => {
    const items = itemsOf([
      message(1, 'user', 'hi\u0007'),
      message(2, 'assistant', 'ho', { model: 'm\u001b', finishReason: 'canceled' }),
      {
        seq: 3,
        at: '',
        type: 'toolCall',
        toolCall: {
          id: 'i',
          name: 'sh',
          args: { a: 1 },
          result: { llmContent: 'out', exitCode: 2 },
          writes: [{ path: 'a', before: 'absent', after: 'unknown' }],
        },
      },
      { seq: 4, at: '', type: 'compaction', compaction: { tokensBefore: 9000, tokensAfter: 100 } },
      { seq: 5, at: '', type: 'message', sizeBytes: 20_000_000 },
      { seq: 6, at: '', type: 'unheardOf' },
    ] as SessionRecord[]);
    assert.deepEqual(
      items.map((item) => item.kind),
      ['user', 'assistant', 'tool', 'note', 'note'],
    );
    assert.equal(items[0].text, 'hi');
    assert.equal(items[1].footer, 'stopped');
    assert.equal(items[1].label, 'm');
    assert.equal(items[2].label, 'sh, exit code 2');
    assert.equal(items[2].footer, 'wrote a');
    assert.match(items[3].text, /9,000 → 100 tokens/);
    assert.match(items[4].text, /19.1 MiB/);
  });

  it('offers to ask again only without a complete answer', () => {
    assert.equal(canRetry([]), false);
    assert.equal(canRetry([message(1, 'user', 'x')]), true);
    assert.equal(canRetry([message(1, 'user', 'x'), message(2, 'assistant', 'y', { finishReason: 'stop' })]), false);
    assert.equal(
      canRetry([message(1, 'user', 'x'), message(2, 'assistant', 'y', { finishReason: 'interrupted' })]),
      true,
    );
  });

  it('describes a context', () => {
    const text = contextText('t', {
      contextSize: 1000,
      promptLimit: 850,
      contextTokens: 100,
      usedPercent: 11.8,
      triggerTokens: 600,
      conversationTokens: 90,
      parts: [
        { name: 'user', tokens: 90 },
        { name: 'tools', tokens: 0 },
      ],
      countKind: 'exact',
      strategy: 'full-history',
      compressionCount: 0,
      checkpointCount: 0,
      window: {},
    });
    assert.match(text, /\| user +\| +90 \| +9\.0 % \| ███$/m);
    assert.doesNotMatch(text, /tools/);
  });
});

describe('page', () => {
  const page = chatPage({
    nonce: 'abc',
    source: 'https://cdn.example',
    script: 'https://cdn.example/main.js',
    style: 'https://cdn.example/"><x.css',
  });

  it('allows one script by its nonce, the style sheet, and nothing else', () => {
    const policy = /Content-Security-Policy" content="([^"]*)"/.exec(page)![1];
    assert.equal(
      policy,
      "default-src 'none'; script-src 'nonce-abc'; style-src https://cdn.example; base-uri 'none'; form-action 'none'",
    );
    assert.doesNotMatch(policy, /unsafe|\*|http:/);
    assert.equal((page.match(/<script/g) ?? []).length, 1);
    assert.match(page, /<script type="module" nonce="abc" src="[^"]+"><\/script>/);
  });

  it('has no handler, style or address of its own', () => {
    assert.doesNotMatch(page, /\son\w+=/i);
    assert.doesNotMatch(page, /\sstyle=|<style/i);
    assert.doesNotMatch(page, /"><x\.css/);
    const files = ['main.js', 'conversation.js', 'render.js', 'markdown.js'].map((name) =>
      fs.readFileSync(path.join(root, 'out/webview', name), 'utf8'),
    );
    for (const file of files)
      assert.doesNotMatch(
        file,
        /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|fetch\(|XMLHttpRequest|import\(/,
      );
    assert.doesNotMatch(fs.readFileSync(path.join(root, 'media/chat.css'), 'utf8'), /url\(|@import/);
  });

  it('has a new nonce each time', () => {
    assert.notEqual(newNonce(), newNonce());
    assert.match(newNonce(), /^[\w-]{32}$/);
  });
});

describe('markdown', () => {
  let markdown: any;
  before(async () => {
    markdown = await new Function('file', 'return import(file)')(path.join(root, 'out/webview/markdown.js'));
  });
  const parse = (text: string) => markdown.parseBlocks(text);

  it('knows the blocks of answers', () => {
    const blocks = parse(
      '# Head *line*\ntext\n- a\n  - b\n- c\n\n1. x\n2. y\n\n> q\n> r\n\n---\n```rs\nfn x() {}\n```\n| a | b |\n|:--|--:|\n| 1 | `|` |\n',
    );
    assert.deepEqual(
      blocks.map((block: any) => block.type),
      ['heading', 'paragraph', 'list', 'list', 'quote', 'rule', 'code', 'table'],
    );
    assert.equal(blocks[2].items.length, 2);
    assert.equal(blocks[2].items[0][1].type, 'list');
    assert.equal(blocks[3].start, 1);
    assert.deepEqual({ language: blocks[6].language, text: blocks[6].text }, { language: 'rs', text: 'fn x() {}' });
    assert.deepEqual(blocks[7].align, ['left', 'right']);
  });

  it('keeps a code block that has no end yet, and fences within fences', () => {
    assert.deepEqual(parse('```py\nprint(1)'), [{ type: 'code', language: 'py', text: 'print(1)' }]);
    assert.deepEqual(parse('````md\n```\nx\n```\n````'), [{ type: 'code', language: 'md', text: '```\nx\n```' }]);
    const [list] = parse('1. first:\n   ```sh\n   ls\n\n   pwd\n   ```\n2. second');
    assert.equal(list.items.length, 2);
    assert.equal(list.items[0][1].text, 'ls\n\npwd');
  });

  it('knows marks, and leaves names alone', () => {
    const inline = (text: string) => JSON.stringify(markdown.parseInline(text));
    assert.match(inline('**a *b* c**'), /strong.*em/);
    assert.equal(inline('snake_case_name and 2 * 3 * 4'), '[{"type":"text","text":"snake_case_name and 2 * 3 * 4"}]');
    assert.match(inline('`a **b**`'), /"code","text":"a \*\*b\*\*"/);
    assert.equal(inline('\\*a\\*'), '[{"type":"text","text":"*a*"}]');
  });

  it('links to pages and mail only, and loads no picture', () => {
    const links = (text: string) => JSON.stringify(markdown.parseInline(text)).match(/"href":"[^"]*"/g) ?? [];
    assert.deepEqual(links('[a](https://x.example/(b)) <https://y.example> https://z.example/q.'), [
      '"href":"https://x.example/(b)"',
      '"href":"https://y.example"',
      '"href":"https://z.example/q"',
    ]);
    for (const bad of [
      'javascript:alert(1)',
      'command:ollm.stop',
      'vscode://x',
      'data:text/html,x',
      'file:///etc/passwd',
      '//x.example',
    ]) {
      assert.deepEqual(links(`[a](${bad}) ![b](${bad})`), [], bad);
    }
    assert.deepEqual(links('![b](https://x.example/p.png)'), ['"href":"https://x.example/p.png"']);
    assert.deepEqual(parse('<img src=x onerror=alert(1)>'), [
      { type: 'paragraph', children: [{ type: 'text', text: '<img src=x onerror=alert(1)>' }] },
    ]);
  });

  it('splits a growing text as it splits the whole', () => {
    const text =
      '# A\n\npara one\n- \n-x\n- i\n\n- j\n  k\n```js\nlet a = `x`;\n```\ntail **b**\n| a | b |\n| - | - |\n| 1 | 2 |\n\n> q\n\n1. a\n2. b\n***\nend';
    for (const size of [1, 2, 3, 7]) {
      const source = new markdown.MarkdownSource();
      for (let at = 0; at < text.length; at += size) {
        source.append(text.slice(at, at + size));
        const whole = markdown.splitBlocks(text.slice(0, at + size)).map((block: any) => block.source);
        assert.deepEqual(source.blocks, whole, JSON.stringify(text.slice(0, at + size)));
      }
    }
  });

  it('takes the marks that close a heading, and no others', () => {
    const heading = (text: string) => parse(text)[0].children.map((child: any) => child.text).join('');
    assert.equal(heading('## Head ##  '), 'Head');
    assert.equal(heading('# C#'), 'C#');
    assert.equal(heading('#'), '');
    assert.deepEqual(markdown.parseInline('` a `'), [{ type: 'code', text: 'a' }]);
  });

  it('takes time in proportion to the text, whatever it is', () => {
    const gap = ' '.repeat(100_000);
    const lines = [
      `# a${gap}b`,
      `\`\`\`${gap}\``,
      `${'~'.repeat(100_000)}\``,
      `| a |\n--${gap}b`,
      `- ${gap}\u2028`,
      `[a](${gap.slice(0, 15_000)}b`,
      `\` ${'a'.repeat(15_000)}\``,
    ];
    for (const line of lines) {
      const began = process.cpuUsage();
      parse(line);
      const { user } = process.cpuUsage(began);
      assert.ok(user < 1_000_000, `${JSON.stringify(line.slice(0, 8))}: ${user / 1000} ms`);
    }
    for (const unit of ['*', '_a ', '`', '[', '[a](', '**a', '> ', '- ', '![', '~~', '| ', '<http', '\\']) {
      const began = process.cpuUsage();
      parse(unit.repeat(20_000 / unit.length));
      parse(`${unit}\n`.repeat(5_000));
      const { user } = process.cpuUsage(began);
      assert.ok(user < 3_000_000, `${unit}: ${user / 1000} ms`);
    }
  });
});
