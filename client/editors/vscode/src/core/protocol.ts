// The parts of the protocol that the extension uses, as PROTOCOL.md describes them. Unknown fields are ignored.

export interface Hello {
  protocol: number;
  pid: number;
  version: string;
  epoch: string;
  homeId?: string;
}

export interface Session {
  sessionId: string;
  shortId?: string;
  title: string;
  projectPath?: string;
  projectName?: string;
  model?: string;
  status: 'corrupted' | 'archived' | 'closed' | 'active';
  pinned?: boolean;
  lastActivity: string;
  messageCount: number;
  toolCallCount: number;
  tokenCount: number;
  draft?: boolean;
}

export type Part =
  | { type: 'text'; text: string }
  | { type: 'thinking'; text: string }
  | { type: 'toolCall'; id: string; name: string; args: unknown }
  | { type: 'image'; mimeType: string; data: string };

export interface Message {
  role: 'system' | 'user' | 'assistant' | 'tool';
  parts: Part[];
  toolName?: string;
  model?: string;
  finishReason?: string;
}

export type FileState = 'absent' | 'unknown' | { hash: string };

export interface FileWrite {
  path: string;
  before: FileState;
  after: FileState;
}

export interface ToolCall {
  id: string;
  name: string;
  args: unknown;
  result: { llmContent: string; displayContent?: string; success?: boolean; error?: string; exitCode?: number };
  writes?: FileWrite[];
}

export interface SessionRecord {
  seq: number;
  parent?: number;
  at: string;
  type: string;
  active?: boolean;
  key?: string;
  sizeBytes?: number;
  message?: Message;
  toolCall?: ToolCall;
  compaction?: { method?: string; tokensBefore?: number; tokensAfter?: number };
  branchSummary?: { summary?: string };
  custom?: { name: string; data?: unknown; contextText?: string };
  putBack?: { cause: string; files?: unknown[]; left?: unknown[] };
}

export interface RecordPage {
  session: Session;
  records: SessionRecord[];
  nextFrom?: number;
}

export interface DaemonEvent {
  epoch: string;
  eventSeq: number;
  sessionId?: string;
  seq?: number;
  kind: string;
  data?: Record<string, unknown>;
}

export interface Usage {
  contextTokens?: number;
  promptLimit?: number;
  countKind?: string;
}

export interface ChatEvent {
  kind: string;
  text?: string;
  thinking?: string;
  name?: string;
  seq?: number;
  answerSeq?: number;
  model?: string;
  ahead?: number;
  tokens?: number;
  expectedMs?: number;
  waitsFor?: string;
  finishReason?: string;
  usage?: Usage;
  message?: string;
  data?: Record<string, unknown>;
  from?: string;
  to?: string;
  shownTokens?: number;
  totalTokens?: number;
}

export interface ContextStatus {
  model?: string;
  contextSize: number;
  promptLimit: number;
  contextTokens: number;
  usedPercent: number;
  triggerTokens: number;
  conversationTokens: number;
  parts: { name: string; tokens: number }[];
  countKind: string;
  strategy: string;
  compressionCount: number;
  checkpointCount: number;
  window: { trainedContext?: number; wantedContext?: number };
  reliability?: { score: number; level: string; reason?: string };
}

export interface PlannedFile {
  path: string;
  status: string;
  action?: string;
  /** The content that the file gets. */
  hash?: string;
  reason?: string;
  loses?: string[];
}

export interface FilePlan {
  planId: string;
  root?: string;
  applied?: boolean;
  counts: Record<string, number>;
  files: PlannedFile[];
  unlisted?: number;
  unrecorded?: { seq: number; tool: string; omitted?: number; unfinished?: boolean }[];
  unrecordedCalls?: number;
  kept?: { path: string; file: string }[];
}

export interface Operation {
  seq: number;
  throughSeq: number;
  kind: string;
  state?: string;
  text: string;
}

export interface UndoResult {
  leaf?: number;
  operations: Operation[];
  undoable: number;
  redoable: number;
  files?: FilePlan;
}

export interface RecallHit {
  sessionId: string;
  title: string;
  seq: number;
  role: string;
  at: string;
  excerpt: string;
  matched: string[];
  otherBranch?: boolean;
}

export interface Goal {
  id: string;
  description: string;
  priority: string;
  status: 'active' | 'paused' | 'completed';
  checkpoints: { description: string; status: string }[];
  nextSteps: string[];
}

export interface Fact {
  seq: number;
  index: number;
  at: string;
  text: string;
  source: string;
  forgotten?: boolean;
  shown?: boolean;
}

export interface ContextEntry {
  key: string;
  content: string;
  scope: string;
  source: string;
}

export interface ModelInfo {
  model: string;
  sizeBytes: number;
  parameterSize?: string;
  quantization?: string;
  trainedContext?: number;
  capabilities?: string[];
  loaded?: boolean;
  window?: number;
}

/** A part of a text that can be larger than a response. */
export interface TextPart {
  data: string;
  nextCursor?: string;
  total: number;
}

export interface Page<T> {
  data: T[];
  nextCursor?: string;
}
