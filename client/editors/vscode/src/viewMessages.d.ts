// The messages between the extension and the page of the chat. Types only, for both sides.

/** One part of the conversation as the page shows it. */
export interface Item {
  /** Stays the same while the item does. */
  key: string;
  kind: 'user' | 'assistant' | 'tool' | 'note' | 'error';
  text: string;
  /** The number of the record. */
  seq?: number;
  thinking?: string;
  /** A line above the text: the model, or the name of a tool. */
  label?: string;
  /** A line below the text, such as why the answer ended. */
  footer?: string;
  /** The command to type after an error. */
  hint?: string;
  /** The number of characters that are not shown. */
  omitted?: number;
  /** The answer is still arriving. */
  live?: boolean;
}

/** The window bar. */
export interface Bar {
  model: string;
  contextTokens: number;
  promptLimit: number;
  /** The tokens are an estimate. */
  isEstimate: boolean;
  /** The phase of the turn, empty without one. */
  phase: string;
  /** The expected duration of the phase, if it is known. */
  expectedMs?: number;
  running: boolean;
}

export interface Notice {
  text: string;
  hint?: string;
}

export type ToPage =
  | {
      type: 'conversation';
      sessionId: string;
      title: string;
      items: Item[];
      hasEarlier: boolean;
      canRetry: boolean;
      reveal?: string;
    }
  | { type: 'item'; item: Item }
  | { type: 'delta'; key: string; text?: string; thinking?: string }
  | { type: 'rekey'; from: string; to: string }
  | { type: 'bar'; bar: Bar }
  | { type: 'notice'; notice: Notice | null }
  | { type: 'accepted'; requestId: number }
  | { type: 'refused'; requestId: number; text: string; notice: Notice }
  | { type: 'draft'; text: string };

export type FromPage =
  | { type: 'ready' }
  | { type: 'send'; requestId: number; text: string }
  | { type: 'stop' }
  | { type: 'retry' }
  | { type: 'earlier' }
  | { type: 'copy'; text: string }
  | { type: 'insert'; text: string }
  | { type: 'command'; name: string };
