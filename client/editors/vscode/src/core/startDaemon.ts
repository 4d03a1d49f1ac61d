// Starts the daemon with `ollmctl daemon start`, which knows service managers and the races of several clients.

import { execFile } from 'node:child_process';
import * as fs from 'node:fs';
import * as os from 'node:os';
import * as path from 'node:path';
import { Failure } from './failure';
import { oneLine } from './text';

/** The longest wait for the daemon; `ollmctl` itself gives up after 10 s. */
const START_MS = 20_000;

/** Runs `ollmctl daemon start` with the arguments that name the home. */
export function startDaemon(program: string, flags: string[]): Promise<void> {
  return new Promise((resolve, reject) => {
    execFile(findProgram(program), [...flags, 'daemon', 'start'], { timeout: START_MS }, (error, _stdout, stderr) => {
      if (!error) return resolve();
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') {
        const hint = 'cargo install --locked --path . (in a clone of ollm), or set ollm.ollmctl to the program';
        return reject(new Failure('noProgram', `${program} was not found`, hint));
      }
      const text = oneLine(stderr) || oneLine(error.message);
      reject(new Failure('notStarted', `ollmd did not start: ${text}`, 'ollmctl daemon run'));
    });
  });
}

/** Returns the program; a bare name that is not in `PATH` is looked up where cargo installs. */
export function findProgram(program: string): string {
  if (program.includes('/')) return program.startsWith('~/') ? path.join(os.homedir(), program.slice(2)) : program;
  const directories = (process.env.PATH ?? '').split(path.delimiter);
  const isFound = directories.some((directory) => directory && fs.existsSync(path.join(directory, program)));
  const installed = path.join(os.homedir(), '.cargo', 'bin', program);
  return !isFound && fs.existsSync(installed) ? installed : program;
}
