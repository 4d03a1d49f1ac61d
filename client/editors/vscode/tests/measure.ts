// Measures what the extension adds to the wire: from the message of the page to the acceptance by the daemon.
//
// Run `node out/tests/measure.js` behind `npm run build`. The two kinds take turns, so that both see the same machine;
// before each measurement nothing is under way, as when a person types.

import { performance } from 'node:perf_hooks';
import { RawClient, Scratch, until } from './harness';

const ROUNDS = 100;

function median(values: number[]): number {
  return [...values].sort((one, other) => one - other)[Math.floor(values.length / 2)];
}

/** Waits until the page was shown nothing new for a while. */
async function quiet(log: unknown[]): Promise<void> {
  for (let before = -1; before !== log.length;) {
    before = log.length;
    await new Promise((resolve) => setTimeout(resolve, 150));
  }
}

async function main(): Promise<void> {
  const scratch = await Scratch.begin();
  try {
    const { chat, page, connection } = scratch.chat();
    await chat.send('warm up', 0);
    await until('the answer', () => !page.isRunning);
    const { session } = await connection.call<any>('session.create', { projectPath: scratch.project });
    const raw = await RawClient.connect(
      connection.hello ? JSON.parse(scratch.ctl('daemon', 'status', '--json')).socket : '',
    );
    let ended = false;
    raw.onNotification = (message) => {
      if (['done', 'error'].includes(message.params.result?.kind)) ended = true;
    };
    const [wire, extension]: number[][] = [[], []];
    for (let round = 1; round <= ROUNDS; round += 1) {
      const message = { role: 'user', content: `round ${round} [pieces 1]` };
      await quiet(page.log);
      ended = false;
      let began = performance.now();
      await raw.call('chat.send', { sessionId: session.sessionId, message, detach: true });
      wire.push(performance.now() - began);
      await until('the end', () => ended);
      await quiet(page.log);
      began = performance.now();
      await chat.send(message.content, round);
      extension.push(performance.now() - began);
      if (page.last('accepted')?.requestId !== round) throw new Error('not accepted');
      await until('the end', () => !page.isRunning);
    }
    raw.close();
    const [slow, quick] = [median(extension), median(wire)];
    console.log(
      `from the page's message to the acceptance, median of ${ROUNDS}: ${slow.toFixed(2)} ms; the wire: ${quick.toFixed(2)} ms; more: ${(slow - quick).toFixed(2)} ms`,
    );
  } finally {
    scratch.end();
  }
}

void main();
