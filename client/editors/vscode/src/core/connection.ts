// The connection to the daemon: finds and starts it, greets it, and keeps subscriptions over its restarts.
//
// Every call has a deadline. A background reconnect never starts a daemon, because its user may have stopped it; a call
// that a person makes does.

import * as net from 'node:net';
import {
  createMessageConnection,
  MessageConnection,
  ParameterStructures,
  SocketMessageReader,
  SocketMessageWriter,
} from 'vscode-jsonrpc/node';
import { Address, candidates, homeId } from './address';
import { Failure, failureOf, isObject, toFailure } from './failure';
import type { DaemonEvent, Hello } from './protocol';

/** The longest wait for a connection and a greeting. Both take milliseconds. */
const GREETING_MS = 5_000;
/** The longest wait for a reply unless the call names another; the daemon answers most calls in milliseconds. */
const CALL_MS = 30_000;
/** The longest wait for a daemon that follows one that said so (PROTOCOL.md, `daemon.shutdown`). */
const SUCCESSOR_MS = 15_000;
/** The pauses between attempts to reconnect; the last one repeats. */
const BACKOFF_MS = [50, 100, 200, 400, 800, 1_600, 3_200, 5_000];
const PROTOCOL = 1;

export type ConnectionState = 'idle' | 'connecting' | 'connected' | 'waiting' | 'closed';

export interface ConnectionOptions {
  address: () => Address;
  version: string;
  /** Starts the daemon; absent if it may not be started. */
  start?: () => Promise<void>;
}

/** A stream of notifications that a call began, such as a chat turn. */
export interface Stream {
  /** Receives each item of the stream; returns true with the last one, if a kind of item says so. */
  onItem(item: any): unknown;
  /** Is called when the connection ends before the stream. */
  onLost(failure: Failure): void;
}

export interface EventFilter {
  sessionId?: string;
  kinds?: string[];
}

interface Subscription {
  filter: EventFilter;
  onEvent: (event: DaemonEvent) => void;
  since?: { epoch: string; eventSeq: number };
  /** Ends it at the daemon, which serves a few dozen of them on a connection. */
  end?: () => void;
}

export class Connection {
  state: ConnectionState = 'idle';
  hello?: Hello;
  /** The socket of the connection. */
  path?: string;
  /** The reason for the last failed attempt to connect. */
  problem?: Failure;
  private rpc?: MessageConnection;
  private socket?: net.Socket;
  private streams = new Map<string, Stream>();
  private subscriptions = new Set<Subscription>();
  private listeners = new Set<(state: ConnectionState) => void>();
  private attempt?: Promise<void>;
  private timer?: NodeJS.Timeout;
  private failures = 0;

  constructor(private readonly options: ConnectionOptions) {}

  /** Calls the listener with each change of the state. */
  onState(listener: (state: ConnectionState) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Connects if necessary; starts the daemon if it does not run and may be started. */
  async ready(limitMs = SUCCESSOR_MS): Promise<void> {
    if (this.state === 'connected') return;
    if (this.state === 'closed') throw new Failure('disconnected', 'the extension is shutting down');
    await withDeadline(this.connectOrStart(), limitMs, 'the connection to ollmd', 'ollmctl daemon status');
  }

  /** Calls a method and returns its result. */
  async call<T>(method: string, params: object = {}, limitMs = CALL_MS): Promise<T> {
    const endsAt = Date.now() + limitMs;
    await this.ready(Math.min(limitMs, SUCCESSOR_MS));
    return this.send<T>(method, params, Math.max(1, endsAt - Date.now()));
  }

  /** Calls a method that begins a stream, on the connection as it is; returns the function that ends the stream. */
  async open(method: string, params: object, noun: string, stream: Stream, limitMs = CALL_MS): Promise<() => void> {
    const rpc = this.rpc;
    const number = await this.send<number>(method, params, limitMs);
    const key = `${noun}.${number}`;
    if (rpc !== this.rpc) throw lost();
    this.streams.set(key, stream);
    const unsubscribe = method === 'chat.follow' ? 'chat.unfollow' : `${noun}.unsubscribe`;
    return () => {
      // A later connection has streams of its own with the same numbers.
      if (rpc !== this.rpc) return;
      this.streams.delete(key);
      void rpc?.sendRequest(unsubscribe, ParameterStructures.byPosition, number).catch(() => {});
    };
  }

  /** Follows events over all restarts of the daemon. After a gap, the event `resync` or `lagged` comes first. */
  subscribe(filter: EventFilter, onEvent: (event: DaemonEvent) => void): () => void {
    const subscription: Subscription = { filter, onEvent };
    this.subscriptions.add(subscription);
    if (this.state === 'connected') void this.follow(subscription).catch(() => {});
    return () => {
      this.subscriptions.delete(subscription);
      subscription.end?.();
    };
  }

  /** Connects again, to the daemon that the settings name now. */
  async restart(): Promise<void> {
    await this.attempt?.catch(() => {});
    this.hello = undefined;
    for (const subscription of this.subscriptions) subscription.since = undefined;
    this.drop();
    if (this.state === 'closed') return;
    this.setState('waiting');
    await this.connect(false);
  }

  /** Ends the connection for good. */
  close(): void {
    clearTimeout(this.timer);
    this.setState('closed');
    this.drop();
  }

  /** Waits for a reconnect that is under way, then tries itself. */
  private async connectOrStart(): Promise<void> {
    await this.attempt?.catch(() => {});
    if (this.state !== 'connected') await this.connect(true);
  }

  private connect(mayStart: boolean): Promise<void> {
    clearTimeout(this.timer);
    this.attempt ??= this.establish(mayStart).finally(() => {
      this.attempt = undefined;
    });
    return this.attempt;
  }

  private async establish(mayStart: boolean): Promise<void> {
    this.setState('connecting');
    try {
      try {
        await this.find();
      } catch (error) {
        const isMissing = toFailure(error).kind === 'notFound';
        if (!isMissing || !mayStart || !this.options.start) throw error;
        await this.options.start();
        await this.find();
      }
      this.failures = 0;
      this.problem = undefined;
      for (const subscription of this.subscriptions) await this.follow(subscription);
      this.setState('connected');
    } catch (error) {
      this.drop();
      this.problem = toFailure(error);
      this.retryLater();
      throw this.problem;
    }
  }

  /** Connects to the first socket whose daemon serves the home. */
  private async find(): Promise<void> {
    const address = this.options.address();
    let problem = new Failure('notFound', 'ollmd does not run', 'ollmctl daemon start');
    for (const path of candidates(address)) {
      try {
        const socket = await connectSocket(path);
        this.attach(socket);
        const params = {
          client: 'vscode',
          version: this.options.version,
          protocolMin: PROTOCOL,
          protocolMax: PROTOCOL,
        };
        const hello = await this.send<Hello>('daemon.hello', params, GREETING_MS);
        const wanted = homeId(address.home);
        if (!address.requiresHome || !hello.homeId || hello.homeId === wanted) {
          this.hello = hello;
          this.path = path;
          return;
        }
        this.drop();
        problem = new Failure('notFound', `${path} belongs to the daemon of another home`, 'ollmctl daemon start');
      } catch (error) {
        this.drop();
        const failure = toFailure(error);
        // A path without a listener is what a stopped daemon leaves; everything else is worth reporting.
        if (failure.kind !== 'notFound') problem = failure;
      }
    }
    throw problem;
  }

  private attach(socket: net.Socket): void {
    const rpc = createMessageConnection(new SocketMessageReader(socket), new SocketMessageWriter(socket));
    this.rpc = rpc;
    this.socket = socket;
    rpc.onNotification((method, params) => this.notify(method, params));
    const end = () => {
      if (this.rpc === rpc) this.onClosed();
    };
    rpc.onClose(end);
    rpc.onError(() => socket.destroy());
    socket.on('close', end);
    rpc.listen();
  }

  private notify(method: string, params: unknown): void {
    if (!isObject(params)) return;
    const key = `${method.slice(0, method.indexOf('.'))}.${params.subscription}`;
    const stream = this.streams.get(key);
    if (!stream) return;
    if ('error' in params) {
      this.streams.delete(key);
      stream.onLost(failureOf(params.error as object));
    } else if (stream.onItem(params.result) === true) {
      this.streams.delete(key);
    }
  }

  private async send<T>(method: string, params: object, limitMs: number): Promise<T> {
    const rpc = this.rpc;
    if (!rpc) throw lost();
    try {
      const reply = rpc.sendRequest(method, params) as Promise<T>;
      return await withDeadline(reply, limitMs, method, 'ollmctl doctor');
    } catch (error) {
      if (rpc !== this.rpc && !(error instanceof Failure) && !(isObject(error) && isObject(error.data))) throw lost();
      throw toFailure(error);
    }
  }

  private async follow(subscription: Subscription): Promise<void> {
    const stream: Stream = {
      onItem: (event: DaemonEvent) => {
        subscription.since = { epoch: event.epoch, eventSeq: event.eventSeq };
        if (this.subscriptions.has(subscription)) subscription.onEvent(event);
      },
      // The daemon is shutting down: the socket closes next, and the reconnect subscribes again.
      onLost: () => {},
    };
    const params = { ...subscription.filter, since: subscription.since };
    const end = await this.open('event.subscribe', params, 'event', stream);
    if (!this.subscriptions.has(subscription)) return end();
    subscription.end = end;
    // From now on, whatever happens is an event; a later subscription continues from the newest one seen.
    subscription.since ??= this.hello && { epoch: this.hello.epoch, eventSeq: 0 };
  }

  private onClosed(): void {
    this.drop();
    if (this.state === 'closed' || this.attempt) return;
    this.problem = lost();
    this.retryLater();
  }

  private retryLater(): void {
    if (this.state === 'closed') return;
    const pause = BACKOFF_MS[Math.min(this.failures, BACKOFF_MS.length - 1)];
    this.failures += 1;
    this.setState('waiting');
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.connect(false).catch(() => {}), pause);
  }

  /** Forgets the connection; its streams learn that they ended. */
  private drop(): void {
    const { rpc, socket, streams } = this;
    this.rpc = undefined;
    this.socket = undefined;
    this.streams = new Map();
    socket?.destroy();
    rpc?.dispose();
    for (const stream of streams.values()) stream.onLost(lost());
  }

  private setState(state: ConnectionState): void {
    if (this.state === state || this.state === 'closed') return;
    this.state = state;
    for (const listener of this.listeners) listener(state);
  }
}

function lost(): Failure {
  return new Failure('disconnected', 'the connection to ollmd was lost', 'ollmctl daemon status');
}

function connectSocket(path: string): Promise<net.Socket> {
  return new Promise((resolve, reject) => {
    const socket = net.connect(path);
    const fail = (message: string, kind: string) => {
      socket.destroy();
      reject(new Failure(kind, `${path}: ${message}`, 'ollmctl daemon status'));
    };
    socket.setTimeout(GREETING_MS, () => fail('no answer', 'deadline'));
    socket.once('error', (error: NodeJS.ErrnoException) => {
      const isMissing = error.code === 'ECONNREFUSED' || error.code === 'ENOENT';
      fail(error.message, isMissing ? 'notFound' : 'disconnected');
    });
    socket.once('connect', () => {
      socket.setTimeout(0);
      socket.removeAllListeners('error');
      socket.on('error', () => socket.destroy());
      resolve(socket);
    });
  });
}

/** Rejects with a failure if a promise takes longer than `limitMs`. */
export function withDeadline<T>(promise: Promise<T>, limitMs: number, what: string, hint?: string): Promise<T> {
  return new Promise((resolve, reject) => {
    const text = `${what}: no reply within ${Math.round(limitMs / 1000) || 1} s`;
    const timer = setTimeout(() => reject(new Failure('deadline', text, hint)), limitMs);
    promise.then(
      (value) => {
        clearTimeout(timer);
        resolve(value);
      },
      (error) => {
        clearTimeout(timer);
        reject(error);
      },
    );
  });
}
