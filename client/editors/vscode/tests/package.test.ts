// The content of the package: the compiled extension, its page and its one dependency, and no test, source or host of a registry.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs';
import * as path from 'node:path';
import { it } from 'node:test';

const root = path.resolve(__dirname, '../..');

it('packages what runs and nothing else', () => {
  const vsce = path.join(root, 'node_modules/.bin/vsce');
  const files = execFileSync(vsce, ['ls'], { cwd: root, encoding: 'utf8' }).trim().split('\n');
  const needed = [
    'README.md',
    'LICENSE',
    'package.json',
    'media/chat.css',
    'media/ollm.svg',
    'out/src/extension.js',
    'out/webview/main.js',
    'out/webview/markdown.js',
    'node_modules/vscode-jsonrpc/lib/node/main.js',
    'node_modules/vscode-jsonrpc/package.json',
  ];
  for (const file of needed) assert.ok(files.includes(file), file);
  const extra = files.filter((file) =>
    /\.ts$|out\/tests|playwright|typescript|package-lock|\.npmrc|build\.mjs|\.map$/.test(file),
  );
  assert.deepEqual(extra, []);
});

it('names no host of a registry in its lock file', () => {
  assert.doesNotMatch(fs.readFileSync(path.join(root, 'package-lock.json'), 'utf8'), /"resolved": "http/);
});
