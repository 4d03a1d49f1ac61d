// Chats against the real daemon: streams and their ends, cancel, crashes, other clients, and messages that cannot be sent.

import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { Failure } from '../src/core/failure';
import type { Page, Session } from '../src/core/protocol';
import { RawClient, Scratch, until } from './harness';

describe('chat', () => {
  let scratch: Scratch;
  before(async () => {
    scratch = await Scratch.begin();
  });
  after(() => scratch.end());

  async function ask(text: string) {
    const parts = scratch.chat();
    await parts.chat.send(text, 1);
    return parts;
  }

  it('starts the daemon, streams an answer and keeps it', async () => {
    const { chat, page } = await ask('hello from the editor');
    assert.equal(page.last('accepted')?.requestId, 1);
    await until('the answer', () => !page.isRunning && page.texts('assistant').length === 1);
    assert.match(page.texts('assistant')[0], /You said: hello from the editor/);
    assert.ok(
      page.log.some((message) => message.type === 'delta'),
      'pieces were posted',
    );
    await until('the records', () =>
      page.last('conversation')?.items.some((item) => item.kind === 'assistant' && !item.live),
    );
    assert.equal(page.last('conversation')?.canRetry, false);
    await until('the window bar', () => (page.last('bar')?.bar.promptLimit ?? 0) > 0);
    assert.equal(page.last('bar')?.bar.model, 'echo:latest');
    // ollmctl continues the same session.
    const current = JSON.parse(
      scratch.ctl('call', 'session.current', JSON.stringify({ projectPath: scratch.project })),
    );
    assert.equal(current.session.sessionId, chat.session?.sessionId);
  });

  it('folds thinking beside the answer', async () => {
    const { page } = await ask('please [think]');
    await until('the answer', () => !page.isRunning && page.all('assistant').length === 1);
    assert.equal(page.all('assistant')[0].thinking, 'Let me think about it.');
    assert.doesNotMatch(page.texts('assistant')[0], /Let me think/);
  });

  it('stops an answer and keeps what arrived', async () => {
    const { chat, page } = await ask('go on [pieces 5] [hang]');
    await until('the first pieces', () => page.texts('assistant')[0]?.includes('piece 5'));
    await chat.stop();
    await until('the end', () => !page.isRunning);
    await until('the record', () => page.last('conversation')?.canRetry);
    assert.match(page.texts('assistant')[0], /piece 1\npiece 2/);
    assert.equal(page.all('assistant')[0].footer, 'stopped');
    assert.deepEqual(page.texts('error'), []);
  });

  it('shows an error with its command, and asks again', async () => {
    const { page } = await ask('now [fail]');
    await until('the error', () => page.texts('error').length === 1 && !page.isRunning);
    assert.match(page.texts('error')[0], /fail/);
    await until('the offer to ask again', () => page.last('conversation')?.canRetry);
    const { chat, page: other } = scratch.chat();
    await chat.send('unknown model', 1);
    await until('the end', () => !other.isRunning);
    const { sessionId } = chat.session!;
    await until('the connection', () => chat.session && !chat.session.draft);
    scratch.ctl('call', 'session.update', JSON.stringify({ sessionId, model: 'missing:1b' }));
    await chat.send('and now?', 2);
    await until('the hint', () => other.all('error').some((item) => item.hint?.includes('missing:1b')));
  });

  it('refuses a message while the model answers, and an empty one', async () => {
    const { chat, page } = await ask('wait [hang]');
    await chat.send('second', 2);
    assert.equal(page.last('refused')?.text, 'second');
    assert.match(page.last('refused')!.notice.text, /the model is answering/);
    await chat.stop();
    await until('the end', () => !page.isRunning);
    await chat.send('  ', 3);
    assert.equal(page.last('refused')?.requestId, 3);
  });

  it('refuses a message without a daemon, and keeps its text', async () => {
    const other = await Scratch.begin();
    try {
      const { chat, page } = other.chat(other.connection(false));
      await chat.send('do not lose me', 7);
      assert.deepEqual(page.last('refused')?.text, 'do not lose me');
      assert.match(page.last('refused')!.notice.text, /ollmd does not run/);
      assert.equal(page.last('refused')!.notice.hint, 'ollmctl daemon start');
    } finally {
      other.end();
    }
  });

  it('survives a daemon that is killed within an answer', async () => {
    const { connection, chat, page } = await ask('tell me [pieces 3] [hang]');
    await until('the pieces', () => page.texts('assistant')[0]?.includes('piece 3'));
    const { sessionId } = chat.session!;
    scratch.kill();
    await until('the loss', () => page.texts('error').some((text) => /connection to ollmd was lost/.test(text)));
    assert.equal(page.isRunning, false);
    await until('the notice', () => page.last('notice')?.notice?.text.startsWith('No connection'));
    scratch.ctl('daemon', 'start');
    await until('the reconnect', () => connection.state === 'connected');
    await until('the records', () => page.last('conversation')?.canRetry && page.last('notice')?.notice === null);
    assert.equal(chat.session?.sessionId, sessionId);
    assert.equal(page.texts('user')[0], 'tell me [pieces 3] [hang]');
    await chat.send('and on', 2);
    await until('the next answer', () => page.texts('assistant').some((text) => /and on/.test(text)));
  });

  it('finds out whether a message was recorded when the daemon ends before it accepts', async () => {
    const { connection, chat, page } = await ask('first');
    await until('the answer', () => !page.isRunning);
    const open = connection.open.bind(connection);
    connection.open = async (...args: Parameters<typeof open>) => {
      const end = await open(...args);
      if (args[0] !== 'chat.send') return end;
      scratch.kill();
      await until('the loss', () => connection.state === 'waiting');
      scratch.ctl('daemon', 'start');
      throw new Failure('disconnected', 'lost');
    };
    await chat.send('was it recorded?', 2);
    assert.equal(page.last('accepted')?.requestId, 2);
    connection.open = open;
    await until('the records', () => page.texts('user').includes('was it recorded?'));
  });

  it('shows what another client asks, while it is answered', async () => {
    const slow = await Scratch.begin(20);
    try {
      const { chat, page } = slow.chat();
      await chat.send('first [pieces 1]', 1);
      await until('the answer', () => !page.isRunning);
      const raw = await RawClient.connect(JSON.parse(slow.ctl('daemon', 'status', '--json')).socket);
      const message = { role: 'user', content: 'from a shell [pieces 5000]' };
      await raw.call('chat.send', { sessionId: chat.session!.sessionId, message });
      await until('the question', () => page.texts('user').includes(message.content));
      const seen = page.log.length;
      await until('the pieces', () => page.texts('assistant').some((text) => text.includes('piece 9')));
      assert.ok(page.log.slice(seen).some((item) => item.type === 'delta'), 'they arrive one by one');
      // A window that opens in the middle of the answer shows all of it.
      const second = slow.chat();
      await second.chat.open(chat.session!.sessionId);
      await until('the answer in the second window', () => second.page.texts('assistant')[1]?.includes('piece 19'));
      assert.match(second.page.texts('assistant')[1], /^piece 1\npiece 2\n/);
      assert.deepEqual(second.page.texts('user'), page.texts('user'));
      assert.equal(page.isRunning, true);
      await chat.stop();
      await until('the end', () => !page.isRunning && page.last('conversation')?.canRetry);
      await until('the end in the second window', () => !second.page.isRunning);
      assert.deepEqual(second.page.texts('error'), page.texts('error'));
      raw.close();
    } finally {
      slow.end();
    }
  });

  it('goes on with its own answer after the connection was lost', async () => {
    const slow = await Scratch.begin(20);
    try {
      const { connection, chat, page } = slow.chat();
      await chat.send('count [pieces 120]', 1);
      await until('the first pieces', () => page.texts('assistant')[0]?.includes('piece 9'));
      await connection.restart();
      await until('the answer goes on', () => page.isRunning && page.texts('assistant')[0]?.includes('piece 30'));
      assert.deepEqual(page.texts('error'), []);
      await until('the end', () => !page.isRunning && page.texts('assistant')[0]?.includes('piece 120'));
      await until('the record', () => page.last('conversation')?.items.some((item) => item.seq && !item.live));
      const numbers = [...page.texts('assistant')[0].matchAll(/piece (\d+)/g)].map(([, number]) => Number(number));
      assert.deepEqual(numbers, [...Array(120).keys()].map((at) => at + 1));
      assert.deepEqual(page.texts('user'), ['count [pieces 120]']);
    } finally {
      slow.end();
    }
  });

  it('follows an undo of another client and the deletion of its session', async () => {
    const { chat, page } = await ask('take this back');
    await until('the answer', () => page.texts('assistant').length === 1 && !page.isRunning);
    scratch.ctl('undo', '--session', chat.session!.sessionId);
    await until('the undo', () => page.texts('user').length === 0);
    scratch.ctl('redo', '--session', chat.session!.sessionId);
    await until('the redo', () => page.texts('user').length === 1);
    scratch.ctl('sessions', 'delete', chat.session!.sessionId, '--yes');
    await until('the notice', () => page.last('notice')?.notice?.text === 'The session was deleted.');
    assert.equal(chat.session, undefined);
  });

  it('shows an answer of several megabytes up to its limit', async () => {
    const { page } = await ask('much [bytes 5000000]');
    await until('the answer', () => !page.isRunning && page.last('conversation')?.items.some((item) => item.omitted));
    const answer = page.last('conversation')!.items.find((item) => item.kind === 'assistant')!;
    assert.ok(answer.text.length <= 200_000);
    assert.ok(answer.omitted! > 4_000_000);
  });

  it('pages earlier records and reveals one that is far back', async () => {
    const { chat, page, connection } = await ask('the very first words');
    await until('the answer', () => !page.isRunning && !chat.session?.draft);
    const { sessionId } = chat.session!;
    for (let number = 0; number < 200; number += 1) {
      await connection.call('session.record', {
        sessionId,
        message: { role: number % 2 ? 'assistant' : 'user', content: `m${number}` },
      });
    }
    for (let number = 0; number < 100; number += 1) {
      await connection.call('session.recordCustom', { sessionId, name: 'test.note', data: number });
    }
    await chat.open(sessionId);
    assert.equal(page.last('conversation')?.hasEarlier, true);
    assert.ok(page.texts('user').includes('m198'), 'records without an item do not fill the page');
    assert.ok(!page.texts('user').includes('the very first words'));
    await chat.earlier();
    assert.ok(page.texts('user').includes('m60'));
    const { data } = await connection.call<Page<Session & { seq: number }>>('context.recall', {
      query: 'very first words',
      sessionId,
      scope: 'session',
    });
    await chat.open(sessionId, data[0].seq);
    assert.ok(page.log.some((message) => message.type === 'conversation' && message.reveal === `r${data[0].seq}`));
    assert.ok(page.texts('user').includes('the very first words'));
  });
});
