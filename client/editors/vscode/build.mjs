// Compiles the extension, the page of the chat, and the tests into `out`, and puts the license beside what is packaged.
import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('.', import.meta.url));
const compiler = fileURLToPath(new URL('node_modules/typescript/bin/tsc', import.meta.url));
rmSync(`${root}out`, { recursive: true, force: true });
for (const project of ['.', 'src/webview', 'tests']) {
  execFileSync(process.execPath, [compiler, '-p', project], { cwd: root, stdio: 'inherit' });
}
// The page loads modules; Node takes them for modules only with this file.
mkdirSync(`${root}out/webview`, { recursive: true });
writeFileSync(`${root}out/webview/package.json`, '{ "type": "module" }\n');
const license = fileURLToPath(new URL('../../../LICENSE', import.meta.url));
if (existsSync(license)) copyFileSync(license, `${root}LICENSE`);
