// The page in a real Chromium with the real daemon. Runs only where Chromium is installed, and says so.

import assert from 'node:assert/strict';
import * as path from 'node:path';
import { after, before, describe, it } from 'node:test';
import type { Browser } from 'playwright-core';
import { ChatModel } from '../src/core/chatModel';
import type { FromPage, Item } from '../src/viewMessages';
import { ChatTab, chromium, launch } from './browser';
import { Scratch, until } from './harness';

const NARROW = { width: 300, height: 640 };
const WIDE = { width: 900, height: 700 };
const shots = process.env.OLLM_SHOTS;

describe(
  'page in Chromium',
  { skip: chromium ? false : 'no Chromium on this machine; apt-get install chromium' },
  () => {
    let scratch: Scratch;
    let browser: Browser;
    before(async () => {
      scratch = await Scratch.begin(4);
      browser = await launch();
    });
    after(async () => {
      await browser?.close();
      scratch?.end();
    });

    /** Opens the page with a chat behind it. */
    async function open(theme: 'light' | 'dark' = 'dark', size = NARROW, mayStart = true) {
      const received: FromPage[] = [];
      let chat: ChatModel;
      const tab = await ChatTab.open(browser, theme, size, (message) => {
        received.push(message);
        if (message.type === 'ready') chat?.show();
        if (message.type === 'send') void chat.send(message.text, message.requestId);
        if (message.type === 'stop') void chat.stop();
        if (message.type === 'retry') void chat.retry();
        if (message.type === 'earlier') void chat.earlier();
      });
      const connection = scratch.connection(mayStart);
      chat = new ChatModel({
        connection,
        projectPath: scratch.project,
        model: () => undefined,
        onSession: () => {},
        post: (message) => void tab.post(message).catch(() => {}),
      });
      connection.subscribe({}, (event) => chat.follow(event));
      connection.onState(() => chat.connectionChanged());
      chat.show();
      return { tab, page: tab.page, chat, connection, received };
    }

    async function shoot(tab: ChatTab, name: string): Promise<void> {
      if (shots) await tab.page.screenshot({ path: path.join(shots, `${name}.png`) });
    }

    it('sends with Enter, draws the answer, and breaks no rule of its policy', async () => {
      const { tab, page, received, chat } = await open();
      await page.fill('#draft', 'hello\n<img src=x onerror=alert(1)> [link](javascript:alert(1)) **bold**');
      await page.press('#draft', 'Enter');
      await page.waitForSelector('article.assistant:not(.live) .code');
      await until('the end', () => !chat.isRunning);
      assert.equal(await page.inputValue('#draft'), '');
      assert.equal(await page.textContent('article.assistant h1'), 'Answer');
      assert.equal(await page.locator('article.assistant li').count(), 2);
      assert.equal(await page.locator('#conversation img, #conversation script, a[href^="javascript"]').count(), 0);
      assert.equal(await page.textContent('article.assistant strong'), 'bold');
      await page.click('.code button >> text=Copy');
      await page.click('.code button >> text=Insert');
      await until(
        'the buttons',
        () => received.filter((one) => one.type === 'copy' || one.type === 'insert').length === 2,
      );
      assert.deepEqual(
        received.find((one) => one.type === 'insert'),
        { type: 'insert', text: "print('hello')" },
      );
      assert.match((await page.textContent('#tokens'))!, /^~\d+ of 6,963$/);
      assert.deepEqual(tab.problems, []);
      await shoot(tab, 'answer-dark-narrow');
      await tab.close();
    });

    it('refuses inline scripts and other addresses by its policy', async () => {
      const { tab, page } = await open();
      await page.evaluate(() => {
        const script = document.createElement('script');
        script.textContent = 'globalThis.wasRun = true';
        const image = document.createElement('img');
        image.src = 'http://127.0.0.1:9/x.png';
        const handler = document.createElement('b');
        handler.setAttribute('onclick', 'globalThis.wasRun = true');
        document.body.append(script, image, handler);
        handler.click();
      });
      await until(
        'the refusals',
        () => tab.problems.filter((text) => /Content Security Policy/.test(text)).length >= 3,
      );
      assert.equal(await page.evaluate(() => (globalThis as any).wasRun), undefined);
      await tab.close();
    });

    it('keeps the place of a reader who scrolled up, and returns to the newest', async () => {
      const { tab, page, chat } = await open('light', WIDE);
      await page.fill('#draft', 'many [pieces 400]');
      await page.press('#draft', 'Enter');
      const main = page.locator('#conversation');
      await until('a long answer', () => main.evaluate((node) => node.scrollHeight > node.clientHeight * 2));
      assert.ok(
        await main.evaluate((node) => node.scrollHeight - node.scrollTop - node.clientHeight < 2),
        'the page follows',
      );
      await main.evaluate((node) => {
        node.scrollTop = 40;
      });
      const height = await main.evaluate((node) => node.scrollHeight);
      await until('more text', () => main.evaluate((node, before) => node.scrollHeight > before, height));
      assert.equal(await main.evaluate((node) => node.scrollTop), 40);
      await page.waitForSelector('#newest:not([hidden])');
      await shoot(tab, 'streaming-light-wide');
      await until('the end', () => !chat.isRunning);
      await until('the records', () =>
        page
          .locator('article.live')
          .count()
          .then((count) => count === 0),
      );
      assert.equal(await main.evaluate((node) => node.scrollTop), 40);
      await page.click('#newest');
      assert.ok(await main.evaluate((node) => node.scrollHeight - node.scrollTop - node.clientHeight < 2));
      // A view that becomes smaller keeps following.
      const isAtEnd = () => main.evaluate((node) => node.scrollHeight - node.scrollTop - node.clientHeight < 2);
      await tab.post({ type: 'notice', notice: { text: 'a notice that takes some room', hint: 'ollmctl doctor' } });
      await page.waitForSelector('#notice:not([hidden])');
      await until('the end again', isAtEnd);
      await page.fill('#draft', 'more [pieces 50]');
      await page.press('#draft', 'Enter');
      await until('the next answer', () =>
        page.textContent('article:last-of-type').then((text) => text!.includes('piece 50')),
      );
      await until('the end', () => !chat.isRunning);
      await until('the page follows', isAtEnd);
      await tab.close();
    });

    it('stops with the button, and offers to ask again', async () => {
      const { tab, page } = await open('light');
      await page.fill('#draft', 'wait [pieces 3] [hang]');
      await page.click('#send');
      await page.waitForSelector('#stop:not([hidden])');
      await page.waitForSelector('article.live');
      await page.click('#stop');
      await page.waitForSelector('#retry:not([hidden])');
      assert.equal(await page.textContent('article.assistant .footer'), 'stopped');
      await shoot(tab, 'stopped-light-narrow');
      await tab.close();
    });

    it('keeps the draft of a message that was refused, also over a reload of the page', async () => {
      const other = await Scratch.begin();
      const before = scratch;
      scratch = other;
      try {
        const { tab, page } = await open('dark', NARROW, false);
        await page.fill('#draft', 'precious words');
        await page.press('#draft', 'Enter');
        await page.waitForSelector('#refused:not([hidden])');
        assert.match((await page.textContent('#refused'))!, /ollmd does not run.*ollmctl daemon start/);
        assert.equal(await page.inputValue('#draft'), 'precious words');
        await shoot(tab, 'refused-dark-narrow');
        await page.reload();
        assert.equal(await page.inputValue('#draft'), 'precious words');
        await tab.close();
      } finally {
        scratch = before;
        other.end();
      }
    });

    it('shows every kind of item, in light and dark, narrow and wide', async () => {
      for (const theme of ['light', 'dark'] as const) {
        for (const [name, size] of [
          ['narrow', NARROW],
          ['wide', WIDE],
        ] as const) {
          const tab = await ChatTab.open(browser, theme, size, () => {});
          await tab.post({
            type: 'conversation',
            sessionId: 'x',
            title: 't',
            items: gallery(),
            hasEarlier: true,
            canRetry: true,
          });
          await tab.post({
            type: 'notice',
            notice: { text: 'No connection: ollmd does not run', hint: 'ollmctl daemon start' },
          });
          await tab.post({
            type: 'bar',
            bar: {
              model: 'qwen3:8b',
              contextTokens: 12_345,
              promptLimit: 13_926,
              isEstimate: true,
              phase: 'reading 1,200 tokens',
              expectedMs: 3000,
              running: true,
            },
          });
          await tab.page.waitForSelector('article.error');
          assert.equal(await tab.page.textContent('article.user pre'), 'fn parse() {}\n```');
          await tab.page.evaluate(() => {
            document.querySelector('details')!.open = true;
          });
          assert.ok(
            await tab.page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth),
            'nothing is wider than the view',
          );
          await tab.page.evaluate(() => {
            document.getElementById('conversation')!.scrollTop = 0;
          });
          await shoot(tab, `gallery-${theme}-${name}`);
          await tab.page.evaluate(() => {
            const main = document.getElementById('conversation')!;
            main.scrollTop = main.scrollHeight;
          });
          await shoot(tab, `gallery-end-${theme}-${name}`);
          assert.deepEqual(tab.problems, []);
          await tab.close();
        }
      }
    });

    it('stays usable with an answer of megabytes', async () => {
      const { tab, page, chat } = await open();
      await page.fill('#draft', 'much [bytes 3000000]');
      await page.press('#draft', 'Enter');
      await page.waitForSelector('article.assistant .footer');
      await page.fill('#draft', 'typed meanwhile');
      await until('the end', () => !chat.isRunning);
      assert.equal(await page.inputValue('#draft'), 'typed meanwhile');
      assert.match((await page.textContent('article.assistant .footer'))!, /more characters/);
      await tab.close();
    });
  },
);

function gallery(): Item[] {
  const markdown = [
    '## A plan',
    '',
    'Read `src/parser.rs` first. It has **two** passes, and the *second* one is slow; see [the docs](https://docs.example/parser).',
    '',
    '1. Measure:',
    '   ```sh',
    '   cargo bench --bench parse',
    '   ```',
    '2. Merge the passes',
    '   - keep `Token`',
    '   - drop `RawToken`',
    '',
    '```rust',
    'fn parse(input: &str) -> Result<Vec<Token>, ParseError> {',
    '    input.lines().map(parse_line).collect() // a long line that does not fit into a narrow view',
    '}',
    '```',
    '',
    '| pass | time | share |',
    '|:--|--:|:-:|',
    '| lex | 12 ms | 80 % |',
    '| parse | 3 ms | 20 % |',
    '',
    '> Quoted: never touch `legacy/`.',
    '',
    '---',
    'That is all.',
  ].join('\n');
  return [
    {
      key: '1',
      kind: 'user',
      text: 'How do I make the parser faster?\n\nsrc/parser.rs, lines 3 to 5:\n\n````rust\nfn parse() {}\n```\n````\n',
    },
    {
      key: '2',
      kind: 'tool',
      label: 'shell, exit code 2',
      text: '{"command":"cargo test"}\nerror: could not compile',
      footer: 'wrote src/parser.rs, tests/it.rs',
    },
    {
      key: '3',
      kind: 'assistant',
      label: 'qwen3:8b',
      thinking: 'The user wants speed.\nTwo passes can be merged.',
      text: markdown,
    },
    {
      key: '4',
      kind: 'note',
      text: 'Older messages became notes for the model: 12,000 → 3,400 tokens. The session keeps every word.',
    },
    { key: '5', kind: 'user', text: 'Go on.' },
    { key: '6', kind: 'assistant', label: 'qwen3:8b', text: 'First, the lexer', footer: 'stopped' },
    { key: 'problem', kind: 'error', text: 'no model server answers at http://127.0.0.1:11434', hint: 'ollama serve' },
    { key: '7', kind: 'assistant', label: 'qwen3:8b', text: 'Now I', live: true },
  ];
}
