// The parts that the tests share: a home with a real daemon, a model server, a raw client of the wire, and a page that remembers.

import { ChildProcess, execFileSync, spawn } from 'node:child_process';
import * as fs from 'node:fs';
import * as net from 'node:net';
import * as os from 'node:os';
import * as path from 'node:path';
import { createInterface } from 'node:readline';
import { Address, resolveAddress } from '../src/core/address';
import { ChatModel } from '../src/core/chatModel';
import { Connection } from '../src/core/connection';
import { startDaemon } from '../src/core/startDaemon';
import type { ToPage } from '../src/viewMessages';

const DEADLINE_MS = 20_000;
const bin = process.env.OLLM_BIN ?? path.resolve(__dirname, '../../../../../target/debug');
const modelServer = process.env.OLLM_MODEL_SERVER ?? path.resolve(__dirname, '../../../model_server.py');

/** Waits until a condition holds; never longer than the deadline. */
export async function until<T>(
  what: string,
  probe: () => T | undefined | false | Promise<T | undefined | false>,
): Promise<T> {
  const endsAt = Date.now() + DEADLINE_MS;
  for (;;) {
    const value = await probe();
    if (value) return value;
    if (Date.now() > endsAt) throw new Error(`not within ${DEADLINE_MS / 1000} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** A scratch home with a project, a model server, and the daemon once it is started. */
export class Scratch {
  readonly root = fs.mkdtempSync(path.join(os.tmpdir(), 'ollm-vs-'));
  readonly home = path.join(this.root, 'home');
  readonly project = path.join(this.root, 'project');
  readonly ollmctl = path.join(bin, 'ollmctl');
  private readonly closers: (() => void)[] = [];
  private server?: ChildProcess;

  static async begin(pauseMs = 0): Promise<Scratch> {
    const scratch = new Scratch();
    fs.mkdirSync(scratch.home, { mode: 0o700 });
    fs.mkdirSync(scratch.project);
    const server = spawn('python3', [modelServer, '--port', '0', '--pause', String(pauseMs)], {
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    scratch.server = server;
    const address = await new Promise<string>((resolve) => createInterface(server.stdout!).once('line', resolve));
    const config = `models: {default: "echo:latest"}\nollama: {host: "${address}"}\n`;
    fs.writeFileSync(path.join(scratch.home, 'config.yaml'), config);
    return scratch;
  }

  get environment(): NodeJS.ProcessEnv {
    const kept = Object.entries(process.env).filter(([name]) => !name.startsWith('OLL'));
    return { ...Object.fromEntries(kept), OLLM_HOME: this.home };
  }

  address(): Address {
    return resolveAddress({ home: this.home, environment: this.environment });
  }

  /** Returns a connection that can start the daemon, as the extension makes it. */
  connection(mayStart = true): Connection {
    const start = () => startDaemon(this.ollmctl, this.address().arguments);
    const connection = new Connection({ address: () => this.address(), version: '0', ...(mayStart ? { start } : {}) });
    this.closers.push(() => connection.close());
    return connection;
  }

  /** Returns a chat with a page that remembers what it was shown. */
  chat(connection = this.connection()): { connection: Connection; chat: ChatModel; page: FakePage } {
    const page = new FakePage();
    const chat = new ChatModel({
      connection,
      projectPath: this.project,
      model: () => undefined,
      post: (message) => page.receive(message),
      onSession: () => {},
    });
    connection.subscribe({}, (event) => chat.follow(event));
    connection.onState(() => chat.connectionChanged());
    this.closers.push(() => chat.dispose());
    return { connection, chat, page };
  }

  /** Runs `ollmctl` in the project. */
  ctl(...args: string[]): string {
    return execFileSync(this.ollmctl, args, {
      cwd: this.project,
      env: this.environment,
      encoding: 'utf8',
      stdio: 'pipe',
    });
  }

  /** Kills the daemon as a crash would. */
  kill(): void {
    const { pid } = JSON.parse(fs.readFileSync(path.join(this.home, 'daemon.json'), 'utf8'));
    process.kill(pid, 'SIGKILL');
  }

  end(): void {
    for (const close of this.closers) close();
    this.server?.kill();
    try {
      this.ctl('daemon', 'stop');
    } catch {
      // The daemon does not run.
    }
    fs.rmSync(this.root, { recursive: true, force: true });
  }
}

/** The page of the chat without a browser: applies messages as the page does. */
export class FakePage {
  readonly log: ToPage[] = [];
  private items = new Map<
    string,
    { kind: string; text: string; thinking?: string; footer?: string; hint?: string; label?: string }
  >();

  receive(message: ToPage): void {
    this.log.push(message);
    if (message.type === 'conversation') this.items = new Map(message.items.map((item) => [item.key, { ...item }]));
    if (message.type === 'item') this.items.set(message.item.key, { ...message.item });
    if (message.type === 'delta') {
      const item = this.items.get(message.key);
      if (item) item.text += message.text ?? '';
      if (item && message.thinking) item.thinking = (item.thinking ?? '') + message.thinking;
    }
    if (message.type === 'rekey') {
      this.items = new Map([...this.items].map(([key, item]) => [key === message.from ? message.to : key, item]));
    }
  }

  /** Returns the texts of the items of a kind. */
  texts(kind: string): string[] {
    return this.all(kind).map((item) => item.text);
  }

  all(kind: string) {
    return [...this.items.values()].filter((item) => item.kind === kind);
  }

  /** Returns the newest message of a type. */
  last<T extends ToPage['type']>(type: T): Extract<ToPage, { type: T }> | undefined {
    return this.log.filter((message) => message.type === type).at(-1) as Extract<ToPage, { type: T }> | undefined;
  }

  get isRunning(): boolean {
    return this.last('bar')?.bar.running ?? false;
  }
}

/** A client that writes and reads lines on the socket itself. */
export class RawClient {
  private readonly waiting = new Map<number, (reply: any) => void>();
  private nextId = 1;
  onNotification: (message: any) => void = () => {};

  private constructor(private readonly socket: net.Socket) {
    createInterface(socket).on('line', (line) => {
      const message = JSON.parse(line);
      if (message.id === undefined) return this.onNotification(message);
      this.waiting.get(message.id)?.(message);
      this.waiting.delete(message.id);
    });
  }

  static async connect(file: string): Promise<RawClient> {
    const socket = net.connect(file);
    await new Promise((resolve, reject) => {
      socket.once('connect', resolve);
      socket.once('error', reject);
    });
    return new RawClient(socket);
  }

  call(method: string, params: object): Promise<any> {
    const id = this.nextId++;
    const reply = new Promise<any>((resolve) => this.waiting.set(id, resolve));
    this.socket.write(`${JSON.stringify({ jsonrpc: '2.0', id, method, params })}\n`);
    return reply.then((message) => {
      if (message.error) throw new Error(JSON.stringify(message.error));
      return message.result;
    });
  }

  close(): void {
    this.socket.destroy();
  }
}
