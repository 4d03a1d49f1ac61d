// Errors as a person reads them: what happened, and the next command to type (PROTOCOL.md, section 12).

import { clean, oneLine } from './text';

/** An error of the daemon, or of the way to it. */
export class Failure extends Error {
  /** The kind of the daemon's error, or `disconnected`, `deadline`, `notFound`, `wrongHome`. */
  readonly kind: string;
  /** A command that a person can type next. */
  readonly hint?: string;
  /** The `data` of the daemon's error. */
  readonly data: Record<string, unknown>;

  constructor(kind: string, message: string, hint?: string, data: Record<string, unknown> = {}) {
    super(message);
    this.name = 'Failure';
    this.kind = kind;
    this.hint = hint;
    this.data = data;
  }
}

/** Returns the failure in an error response or in an `error` event. */
export function failureOf(error: { message?: unknown; data?: unknown }): Failure {
  const data = isObject(error.data) ? error.data : {};
  // One line: a person copies it into a terminal, where a second one would run at once.
  const hint = typeof data.hint === 'string' ? oneLine(data.hint) : undefined;
  const kind = typeof data.kind === 'string' ? data.kind : 'unknown';
  return new Failure(kind, clean(String(error.message ?? 'unknown error')), hint, data);
}

/** Returns anything that was thrown as a failure. */
export function toFailure(error: unknown): Failure {
  if (error instanceof Failure) return error;
  if (isObject(error) && 'code' in error && 'data' in error) return failureOf(error);
  return new Failure('unknown', oneLine(error instanceof Error ? error.message : String(error)));
}

/** Returns a failure on one line, with the command to type. */
export function describe(failure: Failure): string {
  const message = oneLine(failure.message);
  return failure.hint ? `${message} — try: ${oneLine(failure.hint)}` : message;
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
