// The connection: addresses, framing in pieces, large frames, deadlines, other homes, restarts and resubscription.

import assert from 'node:assert/strict';
import * as fs from 'node:fs';
import * as net from 'node:net';
import * as path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { candidates, fnv1a, homeId, isOwnSocket, resolveAddress } from '../src/core/address';
import { Connection } from '../src/core/connection';
import { Failure } from '../src/core/failure';
import type { DaemonEvent, Session } from '../src/core/protocol';
import { Scratch, until } from './harness';

describe('address', () => {
  it('hashes as the daemon does', () => {
    assert.equal(fnv1a(Buffer.from('')), '811c9dc5');
    assert.equal(fnv1a(Buffer.from('foobar')), 'bf9cf968');
  });

  it('prefers settings to the environment, and resolves links', () => {
    const root = fs.mkdtempSync('/tmp/ollm-vs-');
    fs.mkdirSync(path.join(root, 'home'));
    fs.symlinkSync(path.join(root, 'home'), path.join(root, 'link'));
    const address = resolveAddress({ home: path.join(root, 'link'), environment: { OLLM_HOME: '/elsewhere' } });
    assert.equal(address.home, fs.realpathSync(path.join(root, 'home')));
    assert.deepEqual(address.arguments, ['--home', address.home]);
    assert.equal(resolveAddress({ environment: { OLLM_SOCKET: '/x/s.sock' } }).requiresHome, false);
    assert.equal(resolveAddress({ environment: { OLLM_SOCKET: '/x/s.sock', OLLM_HOME: root } }).requiresHome, true);
    fs.rmSync(root, { recursive: true });
  });

  it('ignores a copied daemon.json and a socket in a directory of others', async () => {
    const root = fs.mkdtempSync('/tmp/ollm-vs-');
    const file = path.join(root, 'run', 'ollmd.sock');
    fs.mkdirSync(path.dirname(file));
    const server = net.createServer().listen(file);
    await new Promise((resolve) => server.once('listening', resolve));
    const address = { home: root, requiresHome: true, arguments: [] };
    fs.writeFileSync(path.join(root, 'daemon.json'), JSON.stringify({ socket: file, homeId: '1:2' }));
    assert.deepEqual(candidates(address), [file]);
    assert.equal(isOwnSocket(file), true);
    fs.chmodSync(path.dirname(file), 0o777);
    assert.equal(isOwnSocket(file), false);
    server.close();
    fs.rmSync(root, { recursive: true });
  });
});

/** A server that sends what the test decides, byte for byte. */
class Script {
  readonly root = fs.mkdtempSync('/tmp/ollm-vs-');
  readonly home = this.root;
  private readonly file = path.join(this.root, 'run', 'ollmd.sock');
  private server?: net.Server;

  constructor(private readonly reply: (request: any, send: (value: object) => void, socket: net.Socket) => void) {
    fs.mkdirSync(path.dirname(this.file));
  }

  async begin(pieceBytes: number): Promise<void> {
    this.server = net
      .createServer((socket) => {
        let input = Buffer.alloc(0);
        socket.on('error', () => {});
        socket.on('data', (data) => {
          input = Buffer.concat([input, data]);
          for (;;) {
            const head = /^Content-Length: (\d+)\r\n\r\n/.exec(input.toString('latin1', 0, 200));
            if (!head || input.length < head[0].length + Number(head[1])) return;
            const end = head[0].length + Number(head[1]);
            const request = JSON.parse(input.toString('utf8', head[0].length, end));
            input = input.subarray(end);
            this.reply(request, (value) => sendInPieces(socket, { jsonrpc: '2.0', ...value }, pieceBytes), socket);
          }
        });
      })
      .listen(this.file);
    await new Promise((resolve) => this.server!.once('listening', resolve));
  }

  connection(): Connection {
    return new Connection({ address: () => ({ home: this.home, requiresHome: true, arguments: [] }), version: '0' });
  }

  end(): void {
    this.server?.close();
    fs.rmSync(this.root, { recursive: true, force: true });
  }
}

function sendInPieces(socket: net.Socket, value: object, pieceBytes: number): void {
  const body = Buffer.from(JSON.stringify(value));
  const frame = Buffer.concat([Buffer.from(`Content-Length: ${body.length}\r\n\r\n`), body]);
  for (let at = 0; at < frame.length; at += pieceBytes) socket.write(frame.subarray(at, at + pieceBytes));
}

describe('framing', () => {
  const hello = (id: number, home: string) => ({ id, result: { protocol: 1, version: '0', epoch: 'e', homeId: home } });

  it('reads frames in pieces of one byte, also within a character', async () => {
    const text = 'ünï 🙂 漢字';
    const script = new Script((request, send) => {
      if (request.method === 'daemon.hello') return send(hello(request.id, homeId(script.home)!));
      send({ id: request.id, result: { text } });
    });
    await script.begin(1);
    const connection = script.connection();
    assert.deepEqual(await connection.call('x.y'), { text });
    connection.close();
    script.end();
  });

  it('refuses the daemon of another home and says which socket it was', async () => {
    const script = new Script((request, send) => send(hello(request.id, '9:9')));
    await script.begin(1_000);
    const connection = script.connection();
    await assert.rejects(connection.call('x.y'), (error: Failure) => /daemon of another home/.test(error.message));
    connection.close();
    script.end();
  });

  it('ends a call without a reply at its deadline, and serves the next one', async () => {
    const script = new Script((request, send) => {
      if (request.method === 'daemon.hello') send(hello(request.id, homeId(script.home)!));
      if (request.method === 'x.quick') send({ id: request.id, result: {} });
    });
    await script.begin(1_000);
    const connection = script.connection();
    await assert.rejects(
      connection.call('x.never', {}, 50),
      (error: Failure) => error.kind === 'deadline' && error.hint === 'ollmctl doctor',
    );
    assert.deepEqual(await connection.call('x.quick'), {});
    connection.close();
    script.end();
  });

  it('fails the calls of a connection that ends, and says so', async () => {
    const script = new Script((request, send, socket) => {
      if (request.method === 'daemon.hello') return send(hello(request.id, homeId(script.home)!));
      socket.destroy();
    });
    await script.begin(1_000);
    const connection = script.connection();
    await assert.rejects(connection.call('x.y'), (error: Failure) => error.kind === 'disconnected');
    connection.close();
    script.end();
  });
});

describe('connection', () => {
  let scratch: Scratch;
  before(async () => {
    scratch = await Scratch.begin();
  });
  after(() => scratch.end());

  it('starts the daemon once for several callers, and greets it', async () => {
    const [one, other] = [scratch.connection(), scratch.connection()];
    await Promise.all([one.call('daemon.status'), other.call('daemon.status'), one.call('daemon.status')]);
    assert.equal(one.hello?.pid, other.hello?.pid);
    assert.equal(one.hello?.homeId, homeId(scratch.home));
  });

  it('does not start a daemon without permission', async () => {
    const other = await Scratch.begin();
    const connection = other.connection(false);
    await assert.rejects(
      connection.ready(),
      (error: Failure) => error.kind === 'notFound' && error.hint === 'ollmctl daemon start',
    );
    other.end();
  });

  it('says which program is missing', async () => {
    const other = await Scratch.begin();
    const { startDaemon } = await import('../src/core/startDaemon.js');
    const start = () => startDaemon('/nowhere/ollmctl', []);
    const connection = new Connection({ address: () => other.address(), version: '0', start });
    await assert.rejects(
      connection.ready(),
      (error: Failure) => /\/nowhere\/ollmctl was not found/.test(error.message) && /cargo install/.test(error.hint!),
    );
    connection.close();
    other.end();
  });

  it('carries frames of 5 MB in both directions', async () => {
    const connection = scratch.connection();
    const { session } = await connection.call<{ session: Session }>('session.create', {});
    const content = 'é🙂x'.repeat(700_000);
    assert.ok(Buffer.byteLength(content) > 4_800_000);
    const { seq } = await connection.call<{ seq: number }>('session.record', {
      sessionId: session.sessionId,
      message: { role: 'user', content },
    });
    const page = await connection.call<any>('session.get', { sessionId: session.sessionId, from: seq });
    assert.equal(page.records[0].message.parts[0].text, content);
  });

  it('reports the errors of the daemon with their kind and hint', async () => {
    const connection = scratch.connection();
    const params = { sessionId: '019b1c9e-6d1a-7c3e-9d0e-6d1c2a9f4e03' };
    await assert.rejects(
      connection.call('session.get', params),
      (error: Failure) => error.kind === 'sessionNotFound' && error.hint === 'ollmctl sessions list',
    );
  });

  it('resubscribes after a kill and a restart, with a resync, and never starts a daemon by itself', async () => {
    const connection = scratch.connection();
    const events: DaemonEvent[] = [];
    connection.subscribe({}, (event) => events.push(event));
    await connection.ready();
    const { session } = await connection.call<{ session: Session }>('session.create', {});
    const record = () =>
      connection.call('session.record', { sessionId: session.sessionId, message: { role: 'user', content: 'x' } });
    await record();
    await until('the event', () => events.some((event) => event.kind === 'message-recorded'));
    scratch.kill();
    await until('the loss', () => connection.state === 'waiting');
    await until('several attempts', () => connection.problem?.kind === 'notFound');
    assert.throws(() => scratch.ctl('--no-spawn', 'daemon', 'status'));
    scratch.ctl('daemon', 'start');
    await until('the reconnect', () => connection.state === 'connected');
    await until('the resync', () => events.some((event) => event.kind === 'resync'));
    events.length = 0;
    await record();
    await until('an event of the new daemon', () => events.some((event) => event.kind === 'message-recorded'));
  });

  it('ends a subscription at the daemon too, which serves 64 of them on a connection', async () => {
    const connection = scratch.connection();
    await connection.ready();
    for (let number = 0; number < 70; number += 1) {
      const end = connection.subscribe({}, () => {});
      await connection.call('daemon.status');
      end();
    }
    await connection.open('event.subscribe', {}, 'event', { onItem: () => {}, onLost: () => {} });
  });

  it('stays connected over a planned restart', async () => {
    const connection = scratch.connection();
    await connection.ready();
    const before = connection.hello!.epoch;
    scratch.ctl('daemon', 'restart');
    await until('the next daemon', () => connection.state === 'connected' && connection.hello!.epoch !== before);
    await connection.call('daemon.status');
  });
});
