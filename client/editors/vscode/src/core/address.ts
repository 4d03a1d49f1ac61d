// The sockets at which the daemon of a home may listen, and the home that a daemon must serve (PROTOCOL.md, section 1).

import * as fs from 'node:fs';
import * as os from 'node:os';
import * as path from 'node:path';

/** The longest path of a socket in a home, in bytes. Longer ones do not fit into the address of a socket. */
const MAX_SOCKET_PATH_BYTES = 103;

/** The settings that choose a daemon; an empty text counts as absent. */
export interface AddressOptions {
  home?: string;
  socket?: string;
  environment?: NodeJS.ProcessEnv;
}

/** The daemon to use. */
export interface Address {
  home: string;
  /** The only socket to use, if one was given. */
  socket?: string;
  /** A daemon of another home is refused. */
  requiresHome: boolean;
  /** The arguments of `ollmctl` that name this daemon. */
  arguments: string[];
}

/** Resolves the settings and the environment: a setting, else `OLLM_HOME` and `OLLM_SOCKET`, else `~/.ollm`. */
export function resolveAddress(options: AddressOptions): Address {
  const environment = options.environment ?? process.env;
  const given = options.home || environment.OLLM_HOME;
  const socket = options.socket || environment.OLLM_SOCKET || undefined;
  const home = realPath(path.resolve(expand(given || path.join(os.homedir(), '.ollm'))));
  const flags = [
    ...(options.home ? ['--home', home] : []),
    ...(options.socket ? ['--socket', path.resolve(expand(options.socket))] : []),
  ];
  return {
    home,
    socket: socket && path.resolve(expand(socket)),
    requiresHome: Boolean(given) || !socket,
    arguments: flags,
  };
}

/** Returns the sockets to try, in order. Reads `daemon.json` of the home. */
export function candidates(address: Address): string[] {
  if (address.socket) return [address.socket];
  const user = process.geteuid?.() ?? 0;
  const tag = fnv1a(Buffer.from(address.home));
  const inHome = path.join(address.home, 'run', 'ollmd.sock');
  const paths = [
    ...daemonFileSocket(address.home),
    `/run/user/${user}/ollm/${tag}.sock`,
    ...(Buffer.byteLength(inHome) <= MAX_SOCKET_PATH_BYTES ? [inHome] : []),
    `/tmp/ollm-${user}/${tag}.sock`,
  ];
  return [...new Set(paths)].filter(isOwnSocket);
}

/** Returns the id of a home, `<device>:<inode>`, or undefined if the home does not exist. */
export function homeId(home: string): string | undefined {
  try {
    const stat = fs.statSync(home, { bigint: true });
    return `${stat.dev}:${stat.ino}`;
  } catch {
    return undefined;
  }
}

/** Returns the 32-bit FNV-1a hash of bytes, as 8 hex digits. */
export function fnv1a(bytes: Uint8Array): string {
  let hash = 0x811c9dc5;
  for (const byte of bytes) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return hash.toString(16).padStart(8, '0');
}

/** Returns whether a path is a socket of this user or of root, in a directory in which nobody else can replace it. */
export function isOwnSocket(file: string): boolean {
  try {
    const user = process.geteuid?.() ?? 0;
    const isOwn = (stat: fs.Stats) => stat.uid === user || stat.uid === 0;
    const socket = fs.statSync(file);
    const directory = fs.statSync(path.dirname(file));
    const isClosed = (directory.mode & 0o022) === 0 || (directory.mode & 0o1000) !== 0;
    return socket.isSocket() && isOwn(socket) && isOwn(directory) && isClosed;
  } catch {
    return false;
  }
}

/** Returns the socket in `daemon.json`, unless the file was copied from another home. */
function daemonFileSocket(home: string): string[] {
  try {
    const file = JSON.parse(fs.readFileSync(path.join(home, 'daemon.json'), 'utf8'));
    const isOther = typeof file.homeId === 'string' && file.homeId !== homeId(home);
    return !isOther && typeof file.socket === 'string' ? [file.socket] : [];
  } catch {
    return [];
  }
}

function expand(file: string): string {
  return file === '~' || file.startsWith('~/') ? path.join(os.homedir(), file.slice(1)) : file;
}

/** Resolves links. A home that does not exist yet keeps its path. */
function realPath(file: string): string {
  try {
    return fs.realpathSync(file);
  } catch {
    return file;
  }
}
